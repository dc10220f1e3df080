#include "cli/tune_plot.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include <CLI/CLI.hpp>

#include "cli/context.hpp"
#include "cli/numbers.hpp"
#include "cli/searches.hpp"
#include "cli/tune_verbs.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/tune/trial_job.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using nlohmann::json;

constexpr int kPointsOfTrial = 500;
constexpr int kMostCurves = 1000;  // as many trials as the head tells of at once
constexpr double kLittleExplained = 0.1;

struct TunePlotFlags {
  std::string search;
  std::string kind = "curves";
  std::string output;
  int trials = 20;
};

// A member that may be missing.
std::optional<double> finite_at(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? std::nullopt : finite(*found);
}

Error none_reported(const std::string& metric) {
  return Error(ErrorCode::not_found, "no trial has reported " + printable(metric, false));
}

// What all of its legs reported, by step: of a step that came twice the last.
Curve curve_of(const wire::ApiClient& client, const json& trial, const std::string& metric,
               bool all) {
  std::map<double, double> points;
  for (const json& leg : child(trial, "legs")) {
    if (!leg.is_string()) continue;
    json answer;
    try {
      answer = client.get(job_target(leg.get<std::string>(), "/metrics") + "?rank=0" +
                          (all ? "" : "&points=" + std::to_string(kPointsOfTrial)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;  // it was removed meanwhile
      continue;
    }
    for (const json& row : child(answer, "metrics")) {
      if (number_or(row, "rank") != 0) continue;
      if (const auto number = finite_at(child(row, "metrics"), metric.c_str())) {
        points[static_cast<double>(number_or(row, "step"))] = *number;
      }
    }
  }
  return {"trial " + std::to_string(number_or(trial, "trial")), {points.begin(), points.end()}};
}

struct TunePicture {
  json data;           // for --json
  std::string script;  // for gnuplot; empty: `text` alone
  std::string text;
};

TunePicture curves_picture(const Context& context, const wire::ApiClient& client,
                           const std::string& id, const TunePlotFlags& options, PlotKind kind) {
  const json search = client.get(search_target(id, "?trials=" + std::to_string(options.trials)));
  Chart chart;
  chart.metric = text_or(search, "metric");
  json curves = json::array();
  for (const json& trial : child(search, "trials")) {
    Curve curve = curve_of(client, trial, chart.metric, context.globals.json);
    if (curve.points.empty()) continue;
    curves.push_back({{"trial", number_or(trial, "trial")}, {"points", curve.points}});
    chart.curves.push_back(std::move(curve));
  }
  if (chart.curves.empty()) throw none_reported(chart.metric);
  TunePicture picture;
  picture.data["metric"] = chart.metric;
  picture.data["curves"] = std::move(curves);
  picture.script = gnuplot_script({chart}, kind, plot_size());
  return picture;
}

TunePicture parameters_picture(const json& search, const std::vector<json>& trials, PlotKind kind) {
  const std::string metric = text_or(search, "metric");
  const std::vector<ParameterChart> charts = parameter_charts(space_of(search), trials);
  if (charts.empty()) throw none_reported(metric);
  TunePicture picture;
  json parameters = json::array();
  for (const ParameterChart& chart : charts) {
    parameters.push_back({{"name", chart.name},
                          {"logarithmic", chart.logarithmic},
                          {"words", chart.words},
                          {"points", chart.points}});
  }
  picture.data["metric"] = metric;
  picture.data["parameters"] = std::move(parameters);
  picture.script = parameters_script(charts, metric, kind, plot_size());
  return picture;
}

TunePicture importance_picture(const json& search, const std::vector<json>& trials, PlotKind kind) {
  const tune::SearchSpace space = space_of(search);
  std::vector<tune::Params> params;
  std::vector<double> values;
  for (const json& trial : trials) {
    const auto value = finite_at(trial, "value");
    if (!value || text_or(trial, "state") == "failed") continue;
    params.push_back(flat_params(child(trial, "params"), space));
    values.push_back(*value);
  }
  const auto seed = static_cast<std::uint64_t>(number_or(search, "seed"));
  const tune::Importances found = tune::importances(space, params, values, seed);
  TunePicture picture;
  json parameters = json::array();
  for (const tune::Importance& each : found.parameters) {
    parameters.push_back({{"name", each.name}, {"share", each.share}});
  }
  picture.data["metric"] = text_or(search, "metric");
  picture.data["explained"] = found.explained;
  picture.data["parameters"] = std::move(parameters);
  const int explained = static_cast<int>(std::lround(std::max(0.0, found.explained) * 100));
  const std::string title = "what " + text_or(search, "metric") + " hangs on, of " +
                            std::to_string(explained) + " % that is explained";
  if (kind == PlotKind::terminal) {
    picture.text = printable(title, false) + "\n" + importance_lines(found, terminal_columns());
  } else {
    picture.script = importance_script(found, title, kind, plot_size());
  }
  if (found.explained < kLittleExplained) {
    picture.text += "too little is explained for that to say much: more trials\n";
  }
  return picture;
}

TunePicture family_picture(const json& search, const std::vector<json>& trials, PlotKind kind) {
  const json& exploitations = child(search, "exploitations");
  if (exploitations.empty()) {
    throw Error(ErrorCode::not_found,
                text_or(search, "scheduler") == "pbt"
                    ? "no trial has taken another's checkpoint yet"
                    : "only trials of scheduler pbt descend from one another");
  }
  TunePicture picture;
  picture.data["exploitations"] = exploitations;
  picture.script =
      family_script(exploitations, trials, text_or(search, "metric"), kind, plot_size());
  return picture;
}

int run_tune_plot(Context& context, const TunePlotFlags& options) {
  const PlotKind kind = plot_kind(options.output);
  const wire::ApiClient client = context.client();
  const std::string id = find_search_id(client, options.search);
  TunePicture picture;
  if (options.kind == "curves") {
    picture = curves_picture(context, client, id, options, kind);
  } else {
    const json search = client.get(search_target(id));
    const auto make = options.kind == "params"       ? parameters_picture
                      : options.kind == "importance" ? importance_picture
                                                     : family_picture;
    picture = make(search, all_trials(client, id), kind);
  }
  const bool draws = !context.globals.json || kind != PlotKind::terminal;
  if (draws && !picture.script.empty()) draw_picture(picture.script, options.output);
  if (context.globals.json) {
    picture.data["search"] = id;
    picture.data["kind"] = options.kind;
    context.print_json(picture.data);
    return 0;
  }
  context.print(picture.text);
  if (kind != PlotKind::terminal) context.print("wrote " + options.output + "\n");
  return 0;
}

// "set xtics" with words at 0, 1 and so on.
std::string word_tics(const std::vector<std::string>& words) {
  std::string tics;
  for (std::size_t i = 0; i < words.size(); ++i) {
    tics += (i == 0 ? "" : ", ") + gnuplot_text(words[i]) + " " + std::to_string(i);
  }
  return "set xtics (" + tics +
         ")\nset xrange [-0.5:" + gnuplot_number(static_cast<double>(words.size()) - 0.5) + "]\n";
}

std::string log_range(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  if (values.empty() || *least < *most) return "set autoscale x\n";
  return "set xrange [" + gnuplot_number(*least / 2) + ":" + gnuplot_number(*most * 2) + "]\n";
}

}  // namespace

std::vector<ParameterChart> parameter_charts(const tune::SearchSpace& space,
                                             const std::vector<json>& trials) {
  std::map<std::string, std::vector<std::pair<json, double>>> values;
  for (const json& trial : trials) {
    const auto value = finite_at(trial, "value");
    if (!value) continue;
    for (const auto& [name, given] : flat_params(child(trial, "params"), space)) {
      values[name].emplace_back(given, *value);
    }
  }
  std::vector<ParameterChart> result;
  for (const auto& [name, pairs] : values) {
    const tune::Parameter* parameter = space.find(name);
    if (parameter != nullptr && parameter->domain.kind == tune::Domain::Kind::constant) continue;
    ParameterChart chart;
    chart.name = name;
    const bool numbers = std::all_of(pairs.begin(), pairs.end(),
                                     [](const auto& each) { return each.first.is_number(); });
    chart.logarithmic = numbers && parameter != nullptr && parameter->domain.logarithmic();
    std::map<std::string, double> places;  // of words
    if (!numbers) {
      for (const auto& [given, value] : pairs) places[tune::word_of(given)] = 0;
      for (auto& [word, place] : places) {
        place = static_cast<double>(chart.words.size());
        chart.words.push_back(word);
      }
    }
    for (const auto& [given, value] : pairs) {
      chart.points.emplace_back(numbers ? given.get<double>() : places.at(tune::word_of(given)),
                                value);
    }
    result.push_back(std::move(chart));
  }
  return result;
}

std::string parameters_script(const std::vector<ParameterChart>& charts, const std::string& metric,
                              PlotKind kind, std::pair<int, int> size) {
  std::string script = charts_begin(kind, size, charts.size());
  script += "set key off\nset ylabel " + gnuplot_text(metric) + "\n";
  for (const ParameterChart& chart : charts) {
    std::vector<double> xs;
    std::vector<double> ys;
    script += "$points << END\n";
    for (const auto& [x, y] : chart.points) {
      script += gnuplot_number(x) + " " + gnuplot_number(y) + "\n";
      xs.push_back(x);
      ys.push_back(y);
    }
    script += "END\nset xlabel " + gnuplot_text(chart.name) + "\nset xtics autofreq\n";
    script += chart.logarithmic ? "set logscale x\n" : "unset logscale x\n";
    if (!chart.words.empty()) {
      script += word_tics(chart.words);
    } else {
      script += chart.logarithmic ? log_range(xs) : axis_range("x", xs);
    }
    script += axis_range("y", ys) + "plot $points using 1:2 with points\n";
  }
  return script + charts_end(kind, charts.size());
}

std::string importance_script(const tune::Importances& importances, const std::string& title,
                              PlotKind kind, std::pair<int, int> size) {
  std::string script = charts_begin(kind, size, 1);
  script += "set key off\nset title " + gnuplot_text(title) +
            "\nset style fill solid 0.6\nset boxwidth 0.6\nset yrange [0:*]\nset ylabel '%'\n"
            "set xtics rotate by -30\n$shares << END\n";
  std::vector<std::string> names;
  for (const tune::Importance& each : importances.parameters) {
    script += std::to_string(names.size()) + " " + gnuplot_number(each.share * 100) + "\n";
    names.push_back(each.name);
  }
  script += "END\n" + word_tics(names) + "plot $shares using 1:2 with boxes\n";
  return script + charts_end(kind, 1);
}

std::string importance_lines(const tune::Importances& importances, std::size_t columns) {
  std::size_t widest = 1;
  for (const tune::Importance& each : importances.parameters) {
    widest = std::max(widest, display_width(each.name));
  }
  widest = std::min(widest, columns / 2);
  const std::size_t room = columns > widest + 12 ? columns - widest - 10 : 10;
  std::vector<std::vector<Cell>> rows;
  for (const tune::Importance& each : importances.parameters) {
    const auto length =
        static_cast<std::size_t>(std::lround(each.share * static_cast<double>(room)));
    rows.push_back({fit(printable(each.name, false), widest),
                    std::to_string(std::lround(each.share * 100)) + " %",
                    std::string(length, '#')});
  }
  return table({}, rows, false);
}

std::string family_script(const json& exploitations, const std::vector<json>& trials,
                          const std::string& title, PlotKind kind, std::pair<int, int> size) {
  std::string script = charts_begin(kind, size, 1);
  std::string lines;
  long long last = 0;
  double end = 0;
  for (const json& trial : trials) {
    const std::string number_text = std::to_string(number_or(trial, "trial"));
    const double time = finite_at(trial, "time").value_or(0);
    lines += "0 " + number_text + "\n" + gnuplot_number(time) + " " + number_text + "\n\n";
    last = std::max(last, number_or(trial, "trial"));
    end = std::max(end, time);
  }
  std::string arrows;
  for (const json& each : exploitations) {
    const auto at = [&](const char* key) { return finite_at(each, key).value_or(0); };
    end = std::max(end, at("time"));
    arrows += gnuplot_number(at("donor_time")) + " " + gnuplot_number(at("donor")) + " " +
              gnuplot_number(at("time") - at("donor_time")) + " " +
              gnuplot_number(at("trial") - at("donor")) + "\n";
  }
  script += "$lives << END\n" + lines + "END\n$arrows << END\n" + arrows + "END\n";
  script += "set key off\nset title " + gnuplot_text(title) +
            "\nset xlabel 'time'\nset ylabel 'trial'\nset yrange [-0.5:" +
            gnuplot_number(static_cast<double>(last) + 0.5) +
            "]\nset xrange [0:" + gnuplot_number(end > 0 ? end * 1.05 : 1) + "]\n";
  if (last < 30) script += "set ytics 1\n";
  script += "plot $lives using 1:2 with lines, $arrows using 1:2:3:4 with vectors\n";
  return script + charts_end(kind, 1);
}

Verb add_tune_plot(CLI::App& tune) {
  auto options = std::make_shared<TunePlotFlags>();
  CLI::App* app =
      add_verb(tune, "plot", "Draw a search: its trials' curves, what its parameters do",
               "  dtrain tune plot\n"
               "  dtrain tune plot mnist --kind params -o params.svg\n"
               "  dtrain tune plot --kind importance    how much hangs on each parameter\n"
               "  dtrain tune plot --kind family        with pbt, who took whose checkpoint\n");
  add_search_argument(*app, options->search);
  app->add_option("--kind", options->kind,
                  "The metric over the steps, over each parameter, how much of it hangs on each "
                  "(by permutation), or the trials' descent")
      ->type_name("curves|params|importance|family")
      ->check(one_of({"curves", "params", "importance", "family"}));
  app->add_option("--trials", options->trials,
                  "Curves of how many: those that run, and the best (default: 20)")
      ->check(from_to(1, kMostCurves))
      ->type_name("N");
  app->add_option("-o,--output", options->output,
                  "A file that ends in .svg or .png (default: drawn in the terminal)")
      ->type_name("FILE");
  return {app, [options](Context& context) { return run_tune_plot(context, *options); },
          std::nullopt};
}

}  // namespace dtrain::cli
