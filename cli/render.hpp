#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launcher/core/error.hpp"

// What people see: tables, colours, times, errors. Nothing here knows a verb.
namespace dtrain::cli {

// What stdout and stderr are. Colours only on a terminal, and never with NO_COLOR set or TERM=dumb.
struct Terminal {
  bool out = false;  // stdout is a terminal
  bool err = false;
  bool color_out = false;
  bool color_err = false;
  bool dumb = false;  // cannot erase a line
};
Terminal detect_terminal();
// Columns of the terminal at stderr, else stdout; 80 when neither says.
std::size_t terminal_columns();

// Of what people look at, or not: a terminal that is gone and a full disk cost that alone, for
// whoever calls has more to do than to show it. What a program reads goes by write_all().
void write_shown(int fd, std::string_view bytes) noexcept;

enum class Color : std::uint8_t { none, bold, dim, red, green, yellow, blue, magenta, cyan };
std::string paint(std::string_view text, Color color, bool enabled);
// The colour of a rank's prefix: neighbours differ.
Color rank_color(int rank) noexcept;
// Of a state of a job, attempt, rank or node.
Color state_color(std::string_view state) noexcept;

// Columns a terminal needs for UTF-8 text without controls; each code point counts one.
std::size_t display_width(std::string_view text) noexcept;
// Cut to `columns` at a code point, with "…" for what is missing.
std::string fit(std::string_view text, std::size_t columns);

struct Cell {
  std::string text;
  Color color = Color::none;

  Cell(std::string cell_text = {},
       Color cell_color = Color::none)  // NOLINT: a row is a list of words
      : text(std::move(cell_text)), color(cell_color) {}
  Cell(const char* cell_text) : text(cell_text) {}  // NOLINT
};
// Columns two spaces apart, no trailing spaces, each line ended. Control characters are escaped.
std::string table(const std::vector<std::string>& header,
                  const std::vector<std::vector<Cell>>& rows, bool color);

// "just now", "12 s ago", "3 h 07 m ago"; the text itself when it is not a time.
std::string ago(const std::string& rfc3339_time);
// From `start` to `end`, or to now when `end` is empty; empty when there is no start.
std::string span(const std::string& start, const std::string& end);
// A number as people read it: 0.4213, 470, 1.2e-05; the names of what is not finite.
std::string number(const nlohmann::json& value);
// "loss 0.41  accuracy 0.9"
std::string metrics_line(const nlohmann::json& metrics);

// Three lines at most, or with `verbose` all that is known; a SpecError's problems one a line.
std::string error_text(const Error& error, bool color, bool verbose);
nlohmann::json error_json(const Error& error);
// The exit code for an error that ends the program.
int exit_code_for(const Error& error) noexcept;

}  // namespace dtrain::cli
