#include "cli/plot.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/context.hpp"
#include "cli/jobs.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

constexpr int kPoints = 2000;  // of each curve of a picture
constexpr std::size_t kNamedCurves = 12;
constexpr std::size_t kLargestPicture = std::size_t{1} << 30;

struct PlotFlags {
  std::vector<std::string> jobs;
  std::vector<std::string> metrics;
  std::string output;
};

int run_plot(Context& context, const PlotFlags& options) {
  const PlotKind kind = plot_kind(options.output);
  const wire::ApiClient client = context.client();
  std::vector<std::pair<std::string, nlohmann::json>> jobs;
  std::vector<std::string> wanted = options.jobs;
  if (wanted.empty()) wanted.emplace_back();
  for (const std::string& reference : wanted) {
    const nlohmann::json job = find_job(client, reference, DefaultJob::newest);
    const std::string id = wire::get_string(job, "job");
    // Of a picture nobody sees more; --json is for who wants all.
    const std::string most = context.globals.json ? "" : "&points=" + std::to_string(kPoints);
    jobs.emplace_back(id, client.get(job_target(id, "/metrics") + "?rank=0" + most));
  }
  const std::vector<Chart> charts = charts_of(jobs, options.metrics);
  if (!context.globals.json || kind != PlotKind::terminal) {
    draw_picture(gnuplot_script(charts, kind, plot_size()), options.output);
  }
  if (context.globals.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const Chart& chart : charts) {
      nlohmann::json curves = nlohmann::json::array();
      for (const Curve& curve : chart.curves) {
        curves.push_back({{"job", curve.label}, {"points", curve.points}});
      }
      all.push_back({{"metric", chart.metric}, {"curves", curves}});
    }
    context.print_json({{"charts", all}});
  } else if (kind != PlotKind::terminal) {
    context.print("wrote " + options.output + "\n");
  }
  return 0;
}

UniqueFd memory_file() {
  UniqueFd file(::memfd_create("plot", MFD_CLOEXEC));
  if (!file) throw errno_error("cannot hold the plot in memory", errno);
  return file;
}

}  // namespace

std::optional<PlotKind> plot_kind_of(const std::filesystem::path& file) {
  const std::string ending = file.extension().string();
  if (ending == ".svg") return PlotKind::svg;
  if (ending == ".png") return PlotKind::png;
  return std::nullopt;
}

PlotKind plot_kind(const std::string& output) {
  if (output.empty()) return PlotKind::terminal;
  const auto known = plot_kind_of(output);
  if (!known) throw Error(ErrorCode::usage, "'" + output + "' ends neither in .svg nor in .png");
  return *known;
}

std::pair<int, int> plot_size() {
  winsize window{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col <= 20) return {100, 24};
  return {window.ws_col, std::min<int>(window.ws_row > 10 ? window.ws_row - 2 : 24, 30)};
}

std::optional<double> finite(const nlohmann::json& value) {
  if (!value.is_number()) return std::nullopt;
  const auto number = value.get<double>();
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

std::string gnuplot_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// The range of an axis: gnuplot's own choice, but for a single value, which it warns about.
std::string axis_range(const char* axis, const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  if (values.empty() || !(*least == *most)) return std::string("set autoscale ") + axis + "\n";
  const double margin = std::max(1.0, std::abs(*least) / 10);
  return std::string("set ") + axis + "range [" + gnuplot_number(*least - margin) + ":" +
         gnuplot_number(*most + margin) + "]\n";
}

// Between double quotes of gnuplot, where enhanced text is off. There, backquotes run commands. In
// place of a control, also of U+0080 to U+009F, is a blank: it would come to the terminal.
std::string gnuplot_text(const std::string& text) {
  std::string result = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 =
        byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) ++i;
    if (byte == '"' || byte == '\\') result += '\\';
    result += c1 || byte < 0x20 || byte == 0x7F ? ' ' : byte == '`' ? '\'' : text[i];
  }
  return result + "\"";
}

std::string charts_begin(PlotKind kind, std::pair<int, int> size, std::size_t count) {
  std::string script;
  if (kind == PlotKind::svg) {
    script = "set terminal svg noenhanced size 800," + std::to_string(400 * count) +
             " background rgb 'white'\n";
  } else if (kind == PlotKind::png) {
    script = "set terminal pngcairo noenhanced size 800," + std::to_string(400 * count) + "\n";
  } else {
    script = "set terminal dumb noenhanced size " + std::to_string(size.first) + "," +
             std::to_string(size.second) + "\n";
  }
  if (kind != PlotKind::terminal) {
    if (count > 1) script += "set multiplot layout " + std::to_string(count) + ",1\n";
    script += "set grid\n";
  }
  return script;
}

std::string charts_end(PlotKind kind, std::size_t count) {
  return kind != PlotKind::terminal && count > 1 ? "unset multiplot\n" : "";
}

std::vector<Chart> charts_of(const std::vector<std::pair<std::string, nlohmann::json>>& jobs,
                             const std::vector<std::string>& metrics) {
  std::map<std::string, Chart> charts;
  std::set<std::string> known;
  for (const auto& [id, answer] : jobs) {
    // A step that came twice, after a restart, is drawn as it came last. Rank 0 speaks for all.
    std::map<std::string, std::map<double, double>> curves;
    for (const nlohmann::json& row : child(answer, "metrics")) {
      if (number_or(row, "rank") != 0) continue;
      const auto step = static_cast<double>(number_or(row, "step"));
      for (const auto& [name, value] : child(row, "metrics").items()) {
        if (const auto number = finite(value)) curves[name][step] = *number;
      }
    }
    for (const auto& [name, points] : curves) {
      known.insert(name);
      const bool by_default =
          name.find("loss") != std::string::npos || name.find("accuracy") != std::string::npos;
      const bool asked = std::find(metrics.begin(), metrics.end(), name) != metrics.end();
      if (metrics.empty() ? !by_default : !asked) continue;
      charts[name].metric = name;
      charts[name].curves.push_back({id, {points.begin(), points.end()}});
    }
  }
  std::vector<Chart> result;
  if (metrics.empty()) {
    for (auto& [name, chart] : charts) result.push_back(std::move(chart));
  }
  for (const std::string& name : metrics) {
    if (charts.contains(name)) result.push_back(charts.at(name));
  }
  if (result.empty() || (!metrics.empty() && result.size() < metrics.size())) {
    std::string names;
    for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
    throw Error(ErrorCode::not_found, names.empty() ? "no metrics have been reported yet"
                                                    : "no such metric; there are: " + names);
  }
  return result;
}

std::string gnuplot_script(const std::vector<Chart>& charts, PlotKind kind,
                           std::pair<int, int> size) {
  std::string script = charts_begin(kind, size, charts.size());
  script += "set xlabel 'step'\n";
  for (const Chart& chart : charts) {
    // Of very many nobody finds one by its name.
    script += chart.curves.size() <= kNamedCurves ? "set key top right\n" : "set key off\n";
    std::vector<double> xs;
    std::vector<double> ys;
    for (std::size_t i = 0; i < chart.curves.size(); ++i) {
      script += "$curve" + std::to_string(i) + " << END\n";
      for (const auto& [step, value] : chart.curves[i].points) {
        script += gnuplot_number(step) + " " + gnuplot_number(value) + "\n";
        xs.push_back(step);
        ys.push_back(value);
      }
      script += "END\n";
    }
    script += axis_range("x", xs) + axis_range("y", ys);
    script += "set title " + gnuplot_text(chart.metric) + "\nplot ";
    for (std::size_t i = 0; i < chart.curves.size(); ++i) {
      const Curve& curve = chart.curves[i];
      script += (i == 0 ? "" : ", ") + ("$curve" + std::to_string(i)) + " using 1:2 with " +
                (curve.points.size() == 1 ? "points" : "lines") + " title " +
                gnuplot_text(curve.label);
    }
    script += "\n";
  }
  return script + charts_end(kind, charts.size());
}

void draw_picture(const std::string& script, const std::string& output) {
  const UniqueFd told = memory_file();
  write_all(told.get(), script);
  ::lseek(told.get(), 0, SEEK_SET);
  // Where gnuplot itself cannot write all, it does not say so.
  const UniqueFd drawn = memory_file();
  SpawnOptions options;
  options.argv = {"gnuplot", "-"};
  options.stdin_fd = told.get();
  options.stdout_fd = drawn.get();
  options.stderr_fd = STDERR_FILENO;
  pid_t pid = 0;
  try {
    pid = spawn(options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    throw Error(ErrorCode::not_found,
                "plots are drawn by gnuplot, which is not installed: apt-get install gnuplot-nox");
  }
  if (const ProcessExit ended = wait(pid); !ended.ok()) {
    throw Error(ErrorCode::failed, "gnuplot failed: " + ended.str());
  }
  const std::string picture =
      read_file("/proc/self/fd/" + std::to_string(drawn.get()), kLargestPicture);
  if (output.empty()) {
    write_all(STDOUT_FILENO, picture);
    return;
  }
  try {
    write_all(open_file(output, O_WRONLY | O_CREAT | O_TRUNC, 0666).get(), picture);
  } catch (Error& error) {
    error.while_doing("writing " + output);
    throw;
  }
}

Verb add_plot(CLI::App& root) {
  auto options = std::make_shared<PlotFlags>();
  CLI::App* app = add_verb(root, "plot", "Draw a job's metrics over its steps, several in one",
                           "  dtrain plot\n"
                           "  dtrain plot mnist-a mnist-b --metric loss -o loss.svg\n");
  app->add_option("job", options->jobs, "Ids or the beginnings of some (default: the newest)")
      ->type_name("JOB");
  app->add_option(
         "--metric", options->metrics,
         "Which metric; again for more (default: all with loss or accuracy in their names)")
      ->type_name("NAME")
      ->allow_extra_args(false);
  app->add_option("-o,--output", options->output,
                  "A file that ends in .svg or .png (default: drawn in the terminal)")
      ->type_name("FILE");
  return {app, [options](Context& context) { return run_plot(context, *options); }, std::nullopt};
}

}  // namespace dtrain::cli
