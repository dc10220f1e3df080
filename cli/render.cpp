#include "cli/render.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "launcher/core/clock.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/yaml.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

constexpr std::array<const char*, 9> kCodes{"", "1", "2", "31", "32", "33", "34", "35", "36"};

bool environment_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

}  // namespace

Terminal detect_terminal() {
  Terminal terminal;
  terminal.out = ::isatty(STDOUT_FILENO) == 1;
  terminal.err = ::isatty(STDERR_FILENO) == 1;
  const char* term = std::getenv("TERM");
  terminal.dumb = term == nullptr || std::string_view(term) == "dumb" || *term == '\0';
  const bool colors = !environment_set("NO_COLOR") && !terminal.dumb;
  terminal.color_out = terminal.out && colors;
  terminal.color_err = terminal.err && colors;
  return terminal;
}

std::size_t terminal_columns() {
  for (const int fd : {STDERR_FILENO, STDOUT_FILENO}) {
    winsize size{};
    if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  }
  return 80;
}

void write_shown(int fd, std::string_view bytes) noexcept {
  try {
    write_all(fd, bytes);
  } catch (const std::exception&) {
    // Nobody looks.
  }
}

std::string paint(std::string_view text, Color color, bool enabled) {
  if (!enabled || color == Color::none || text.empty()) return std::string(text);
  std::string out = "\x1b[";
  out += kCodes[static_cast<std::size_t>(color)];
  out += 'm';
  out += text;
  out += "\x1b[0m";
  return out;
}

Color rank_color(int rank) noexcept {
  static constexpr std::array<Color, 5> kColors{Color::cyan, Color::magenta, Color::yellow,
                                                Color::blue, Color::green};
  return kColors[static_cast<std::size_t>(rank < 0 ? 0 : rank) % kColors.size()];
}

Color state_color(std::string_view state) noexcept {
  if (state == "succeeded" || state == "ready" || state == "running") return Color::green;
  if (state == "failed" || state == "lost" || state == "killed") return Color::red;
  if (state == "stopped" || state == "drained" || state == "gone") return Color::dim;
  return Color::yellow;
}

std::size_t display_width(std::string_view text) noexcept {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

std::string fit(std::string_view text, std::size_t columns) {
  if (display_width(text) <= columns) return std::string(text);
  if (columns == 0) return {};
  std::size_t at = 0;
  for (std::size_t used = 0; at < text.size() && used + 1 < columns; ++used) {
    ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) ++at;
  }
  return std::string(text.substr(0, at)) + "…";
}

std::string table(const std::vector<std::string>& header,
                  const std::vector<std::vector<Cell>>& rows, bool color) {
  std::vector<std::vector<Cell>> all;
  std::vector<Cell> head;
  for (const std::string& name : header) head.emplace_back(name, Color::dim);
  if (!head.empty()) all.push_back(std::move(head));
  all.insert(all.end(), rows.begin(), rows.end());
  std::vector<std::size_t> widths;
  for (auto& row : all) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i].text = printable(row[i].text, false);
      std::replace(row[i].text.begin(), row[i].text.end(), '\t', ' ');
      widths[i] = std::max(widths[i], display_width(row[i].text));
    }
  }
  std::string out;
  for (const auto& row : all) {
    std::size_t last = row.size();
    while (last > 0 && row[last - 1].text.empty()) --last;
    for (std::size_t i = 0; i < last; ++i) {
      out += paint(row[i].text, row[i].color, color);
      if (i + 1 < last) out.append(widths[i] - display_width(row[i].text) + 2, ' ');
    }
    out += '\n';
  }
  return out;
}

std::string ago(const std::string& rfc3339_time) {
  try {
    const auto passed = std::chrono::system_clock::now() - parse_rfc3339(rfc3339_time);
    if (passed < std::chrono::seconds(2)) return "just now";
    return human_duration(std::chrono::floor<std::chrono::seconds>(passed)) + " ago";
  } catch (const Error&) {
    return rfc3339_time;
  }
}

std::string span(const std::string& start, const std::string& end) {
  if (start.empty()) return {};
  try {
    const WallTime until = end.empty() ? std::chrono::system_clock::now() : parse_rfc3339(end);
    return human_duration(std::max(WallTime::duration::zero(), until - parse_rfc3339(start)));
  } catch (const Error&) {
    return {};
  }
}

std::string number(const nlohmann::json& value) {
  if (value.is_string()) return printable(value.get<std::string>(), false);
  if (!value.is_number_float()) return printable(value.dump(), false);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g", value.get<double>());
  return text.data();
}

std::string metrics_line(const nlohmann::json& metrics) {
  if (!metrics.is_object()) return {};
  std::string line;
  for (const auto& [name, value] : metrics.items()) {
    if (!line.empty()) line += "  ";
    line += printable(name, false) + " " + number(value);
  }
  return line;
}

std::string error_text(const Error& error, bool color, bool verbose) {
  const std::string mark = paint("dtrain:", Color::red, color) + " ";
  std::string out;
  const auto place = [](const Error& one) {
    return one.location() ? one.location()->str() + ": " : std::string();
  };
  if (const auto* spec = dynamic_cast<const SpecError*>(&error)) {
    for (const Error& problem : spec->problems()) {
      out += mark + place(problem) + printable(problem.message(), false);
      if (!problem.hint().empty()) out += " (" + printable(problem.hint(), false) + ")";
      out += '\n';
    }
    for (const std::string& doing : error.context()) {
      if (verbose) out += "  while " + printable(doing, false) + "\n";
    }
    return out;
  }
  out += mark + place(error) + printable(error.message(), false) + "\n";
  if (verbose) {
    for (const std::string& doing : error.context()) {
      out += "  while " + printable(doing, false) + "\n";
    }
    out += std::string("  code: ") + to_string(error.code()) + "\n";
  } else if (!error.context().empty()) {
    out += "  while " + printable(join(error.context(), ", while "), false) + "\n";
  }
  if (!error.hint().empty()) {
    out += "  " + paint("try:", Color::dim, color) + " " + printable(error.hint(), false) + "\n";
  }
  return out;
}

nlohmann::json error_json(const Error& error) {
  nlohmann::json json = wire::error_to_json(error);
  if (const auto* spec = dynamic_cast<const SpecError*>(&error)) {
    nlohmann::json problems = nlohmann::json::array();
    for (const Error& problem : spec->problems()) {
      problems.push_back(wire::error_to_json(problem)["error"]);
    }
    json["error"]["problems"] = std::move(problems);
  }
  return json;
}

int exit_code_for(const Error& error) noexcept {
  switch (error.code()) {
    case ErrorCode::usage:
    case ErrorCode::invalid:
    case ErrorCode::not_found:
      return 2;
    case ErrorCode::unreachable:
      return 4;
    case ErrorCode::conflict:
    case ErrorCode::denied:
    case ErrorCode::timeout:
    case ErrorCode::exhausted:
    case ErrorCode::io:
    case ErrorCode::failed:
    case ErrorCode::internal:
      return 1;
  }
  return 1;
}

}  // namespace dtrain::cli
