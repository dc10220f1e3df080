#include "launcher/core/text.hpp"

#include <doctest/doctest.h>

#include "launcher/core/capture.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process.hpp"

using namespace dtrain;
using Words = std::vector<std::string>;

TEST_CASE("the nearest candidate, if it is near") {
  const Words words{"workdir", "command", "env", "nnodes"};
  CHECK(nearest("workdri", words) == "workdir");
  CHECK(nearest("comand", words) == "command");
  CHECK(nearest("evn", words) == "env");
  CHECK(nearest("EVN", words) == "env");
  CHECK(nearest("cpu", Words{"CPU", "GPU"}) == "CPU");
  CHECK_FALSE(nearest("xyz", words).has_value());
  CHECK_FALSE(nearest("", words).has_value());
  CHECK_FALSE(nearest(std::string(100000, 'x'), words).has_value());
}

TEST_CASE("split and join") {
  CHECK(split("a,b,,c", ',') == Words{"a", "b", "", "c"});
  CHECK(split("", ',') == Words{""});
  CHECK(join(Words{"a", "b"}, ", ") == "a, b");
  CHECK(join(Words{}, ", ").empty());
}

TEST_CASE("a few are named, and the rest counted") {
  const std::vector<std::string> names{"a", "b", "c"};
  CHECK(join_some(names, 3) == "a, b, c");
  CHECK(join_some(names, 2) == "a, b and 1 more");
  CHECK(join_some(names, 1, "; ") == "a and 2 more");
  CHECK(join_some({}, 2).empty());
}

TEST_CASE("nothing printable drives a terminal") {
  CHECK(printable("a\tb\nc") == "a\tb\nc");
  CHECK(printable("a\tb\nc", false) == "a\tb\\x0ac");
  CHECK(printable("\033[2J\r\x07\x7f") == "\\x1b[2J\\x0d\\x07\\x7f");
  CHECK(printable("é€😀") == "é€😀");
  CHECK(printable("\xc2\x9b"
                  "31m") ==
        "\\xc2\\x9b"
        "31m");  // CSI of C1
  CHECK(printable("\xff\xc3") == "\\xff\\xc3");
  CHECK(printable(std::string("a\0b", 3)) == "a\\x00b");
}

TEST_CASE("UTF-8, as RFC 3629 has it") {
  for (const char* good : {"", "abc", "é", "€", "😀", "\xef\xbf\xbd"}) CHECK(is_utf8(good));
  for (const char* bad : {"\x80", "\xc0\xaf", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "a\xff"}) {
    CHECK_FALSE(is_utf8(bad));
  }
}

TEST_CASE("numbers as people write them") {
  for (const auto& [number, text] :
       {std::pair{20.0, "20"}, {-3.0, "-3"}, {0.001, "0.001"}, {2.5, "2.5"}, {1e20, "1e+20"}}) {
    CHECK(number_text(number) == text);
  }
}

TEST_CASE("what is cut ends with a whole character") {
  CHECK(cut("abc", 5) == "abc");
  CHECK(cut("abc", 2) == "ab");
  CHECK(cut("a€", 3) == "a");
  CHECK(cut("a€", 4) == "a€");
  CHECK(cut("€", 2).empty());
}

TEST_CASE("the beginning of a character is no whole one") {
  for (const char* character : {"a", "é", "€", "😀"}) {
    const std::string text = "x" + std::string(character);
    CHECK(whole_characters(text) == text);
    for (std::size_t bytes = 1; bytes < text.size(); ++bytes) {
      CHECK(whole_characters(std::string_view(text).substr(0, bytes)) == "x");
    }
  }
  CHECK(whole_characters("").empty());
  CHECK(whole_characters("\xe2\x82").empty());
  for (const char* never : {"\x80\x80\x80", "a\xff", "\xc0", "€\x82"}) {
    CHECK(whole_characters(never) == never);
  }
}

TEST_CASE("what is quoted, a shell reads back") {
  CHECK(shell_quote("plain-1.0/x") == "plain-1.0/x");
  CHECK(shell_quote("") == "''");
  CHECK(shell_quote("it's") == "'it'\\''s'");
  CHECK_THROWS_AS(shell_quote(std::string("a\0b", 3)), Error);
  for (const std::string& word :
       {std::string("a b"), std::string("$(touch x)`y`\\"), std::string("'\"'\"'"),
        std::string("new\nline"), std::string("*?[]{}~#!&|;<>()"), std::string("-n"),
        std::string("\xff\x01é")}) {
    SpawnOptions options;
    options.argv = {"/bin/sh", "-c", "printf %s " + shell_quote(word)};
    options.env = {"PATH=/bin"};
    CHECK(capture(options, "", std::chrono::seconds(20)).out == word);
  }
  CHECK(shell_join(Words{"a", "b c"}) == "a 'b c'");
}

TEST_CASE("durations and sizes for people") {
  using namespace std::chrono_literals;
  CHECK(human_duration(850ms) == "850 ms");
  CHECK(human_duration(12300ms) == "12.3 s");
  CHECK(human_duration(245s) == "4 m 05 s");
  CHECK(human_duration(187min) == "3 h 07 m");
  CHECK(human_bytes(17) == "17 B");
  CHECK(human_bytes(1229) == "1.2 KiB");
  CHECK(human_bytes(46871347) == "44.7 MiB");
  CHECK(human_dollars(12.239) == "$12.24");
  const unsigned char bytes[] = {0x00, 0xff, 0x1a};
  CHECK(to_hex(bytes) == "00ff1a");
}
