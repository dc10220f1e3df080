#include "cli/colours.hpp"

#include <doctest/doctest.h>

#include <string>

using dtrain::cli::with_colours;

TEST_CASE("colours pass and end with the line") {
  CHECK(with_colours("plain", true) == "plain");
  CHECK(with_colours("\x1b[1;31mred\x1b[0m tail", true) == "\x1b[1;31mred\x1b[0m tail\x1b[0m");
  CHECK(with_colours("\x1b[38;2;1;2;3mdeep", true) == "\x1b[38;2;1;2;3mdeep\x1b[0m");
  CHECK(with_colours("\x1b[4:3mcurly", true) == "\x1b[4:3mcurly\x1b[0m");
  CHECK(with_colours("\x1b[m", true) == "\x1b[m\x1b[0m");
}

TEST_CASE("without colours they are left out") {
  CHECK(with_colours("\x1b[31mred\x1b[0m", false) == "red");
}

TEST_CASE("all else is shown and not obeyed") {
  CHECK(with_colours("\x1b[2J", true) == "\\x1b[2J");
  CHECK(with_colours("\x1b]0;title\x07", true) == "\\x1b]0;title\\x07");
  CHECK(with_colours("\x1b[>4;1m", true) == "\\x1b[>4;1m");
  CHECK(with_colours("\x1b[?25l\x1b[31mx", true) == "\\x1b[?25l\x1b[31mx\x1b[0m");
  CHECK(with_colours("end\x1b", true) == "end\\x1b");
  CHECK(with_colours("\x1b[31", true) == "\\x1b[31");
  const std::string endless = "\x1b[" + std::string(100, '1') + "m";
  CHECK(with_colours(endless, true) == "\\x1b[" + std::string(100, '1') + "m");
}
