#include <doctest/doctest.h>

#include <functional>

#include "tests/launcher/spec/yaml_support.hpp"

using namespace dtrain;
using namespace dtrain::testing;

namespace {

std::string repeat(std::string_view part, std::size_t bytes) {
  std::string text;
  text.reserve(bytes + part.size());
  while (text.size() < bytes) text += part;
  return text;
}

std::string only_problem(std::string_view text) {
  const auto problems = job_problems(text);
  REQUIRE(problems.size() == 1);
  return problems.front();
}

}  // namespace

TEST_CASE("deep nesting is refused, of every kind") {
  const std::size_t n = 100'000;
  CHECK(only_problem(repeat("[", n)) == "1:1001 brackets nested too deep");
  CHECK(only_problem(repeat("{a: ", n)).find("nested too deep") != std::string::npos);
  CHECK(only_problem(repeat("- ", n)).find("nested more than 100 levels") != std::string::npos);
  CHECK(only_problem(repeat("? ", n)).find("a key must be a text") != std::string::npos);
  CHECK(only_problem(repeat("[", 900) + repeat("]", 900)).find("nested more than 100 levels") !=
        std::string::npos);
  std::string block;
  for (std::size_t i = 0; i < 300; ++i) block += std::string(i, ' ') + "x:\n";
  CHECK(only_problem(block) == "100:100 nested more than 100 levels deep");
  // One hundred levels are fine: what is said is that this is no job.
  CHECK(job_problems("command: x\nx: " + repeat("[", 98) + repeat("]", 98)) ==
        std::vector<std::string>{"2:1 x: no such key in a job YAML"});
}

TEST_CASE("depth counts through aliases") {
  std::string text = "a0: &a0 [x]\n";
  for (int i = 1; i < 200; ++i) {
    const std::string before = std::to_string(i - 1);
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [*a" + before + "]\n";
  }
  CHECK(contains(job_problems(text), "nested more than 100 levels"));
}

TEST_CASE("alias bombs are refused") {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string alias = "*a" + std::to_string(i - 1);
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int j = 0; j < 10; ++j) text += alias + (j < 9 ? ", " : "");
    text += "]\n";
  }
  CHECK(contains(job_problems(text), "more than 100000 values"));
  std::string wide = "a: &a \"" + std::string(100'000, 'x') + "\"\nb: [";
  for (int i = 0; i < 1000; ++i) wide += "*a,";
  CHECK(contains(job_problems(wide + "]"), "more than 16.0 MiB of text"));
}

TEST_CASE("aliases to nothing and to themselves") {
  CHECK(only_problem("a: *b") ==
        "1:4 not YAML: this alias (*name) has no anchor (&name) before it [put quotes around a "
        "text that begins with *]");
  CHECK(only_problem("a: &a [*a]") == "1:8 this alias stands within its own anchor");
  CHECK(only_problem("a: &a {b: *a}") == "1:11 this alias stands within its own anchor");
  CHECK(only_problem("? &a x\n: y").find("an anchor on a key") != std::string::npos);
  CHECK(only_problem("a: &a x\n*a : y").find("an alias cannot be a key") != std::string::npos);
}

TEST_CASE("text that is no text") {
  CHECK(only_problem(std::string_view("a: b\nc: \0", 9)) ==
        "2:4 a NUL character [is this a text file, and UTF-8?]");
  CHECK(only_problem("command: \"a\\0b\"").find("a text contains a NUL") != std::string::npos);
  CHECK(only_problem("a: b\nc: \xff\xfe") == "2:1 this line is not UTF-8");
  CHECK(only_problem("a: \x1b[31m").find("a control character: \\x1b") != std::string::npos);
  CHECK(only_problem("\xff\xfe"
                     "a")
            .find("not UTF-8") != std::string::npos);
  CHECK(job("\xef\xbb\xbf"
            "command: x\r\nname: y\r\n")
            .name == "y");
}

TEST_CASE("keys that are no text") {
  CHECK(only_problem("[a]: b").find("a key must be a text") != std::string::npos);
  CHECK(only_problem("{a: b}: c").find("a key must be a text") != std::string::npos);
  CHECK(only_problem(": b").find("a key is empty") != std::string::npos);
  CHECK(only_problem("~: b").find("a key is empty") != std::string::npos);
  CHECK(only_problem("? " + std::string(5000, 'k') + "\n: b").find("a key is longer than") !=
        std::string::npos);
}

TEST_CASE("duplicate keys, at any depth") {
  CHECK(contains(job_problems("command: x\nenv:\n  A: 1\n  A: 2\n"),
                 "4:3 env.A: is there twice in this mapping"));
  CHECK(contains(cluster_problems("provider: {type: aws}\nhead_node_type: h\n"
                                  "available_node_types: {h: {node_config: {a: [{b: 1, b: 2}]}}}"),
                 "node_config.a[0].b: is there twice"));
}

TEST_CASE("tags and documents") {
  CHECK(only_problem("command: !python/object x").find("the tag '!python/object'") !=
        std::string::npos);
  CHECK(only_problem("command: !<x> [a]").find("the tag") != std::string::npos);
  CHECK(job("command: x\nname: !!str 12").name == "12");
  CHECK(only_problem("command: x\n---\ncommand: y").find("a second document") != std::string::npos);
  CHECK(job("---\ncommand: x\n...\n").name == "x");
}

TEST_CASE("mistakes of writing say what to do") {
  CHECK(only_problem("command: a: b").find("put quotes around a text that contains ': '") !=
        std::string::npos);
  CHECK(only_problem("command: x\n\tname: y\n").find("1:") == std::string::npos);
  CHECK(only_problem("command: [a, b").find("a ']' is missing") != std::string::npos);
  CHECK(only_problem("command: \"abc").find("the quote that opens here is never closed") !=
        std::string::npos);
  CHECK(only_problem("command: @x").find("put quotes around") != std::string::npos);
  CHECK(only_problem("command: *.txt").find("put quotes around") != std::string::npos);
}

TEST_CASE("huge files") {
  CHECK(only_problem(std::string(5 * 1024 * 1024, ' ')).find("larger than 4.0 MiB") !=
        std::string::npos);
  const std::size_t n = 4 * 1024 * 1024 - 10;
  CHECK(only_problem("[" + repeat("a,", n - 1)).find("more than 500000 of the characters") !=
        std::string::npos);
  CHECK(only_problem(repeat("- a\n", n)).find("more than 100000 values") != std::string::npos);
  CHECK(only_problem(repeat("&a ", n)).find("more than 500000") != std::string::npos);
  std::string keys;
  for (int i = 0; keys.size() < 500'000; ++i) keys += "key" + std::to_string(i) + ": v\n";
  CHECK(job_problems(keys).size() == 100);  // no more are kept, or looked for
}

TEST_CASE("many problems are kept at most by the hundred, and in order") {
  std::string text = "command: x\nenv:\n";
  for (int i = 0; i < 500; ++i) text += "  " + std::to_string(i) + "x: 1\n";
  const auto problems = job_problems(text);
  CHECK(problems.size() == 100);
  CHECK(problems.front().starts_with("3:"));
}

TEST_CASE("copies that a file asks for are bounded too") {
  std::string text = "provider: {type: gcp}\nhead_node_type: t0\navailable_node_types:\n";
  for (int i = 0; i < 900; ++i) text += "  t" + std::to_string(i) + ": {}\n";
  CHECK(cluster_problems(text).empty());
  std::string commands = "initialization_commands:\n";
  for (int i = 0; i < 40'000; ++i) commands += "  - x\n";
  CHECK(contains(cluster_problems(text + commands), "available_node_types: is too large together"));
  for (int i = 900; i < 2000; ++i) text += "  t" + std::to_string(i) + ": {}\n";
  CHECK(contains(cluster_problems(text), "available_node_types: has more than 1000 types"));
}

TEST_CASE("long keys and values are cut in messages, at a character") {
  std::string key = "a";  // so that the cut would fall within a character
  for (int i = 0; i < 100; ++i) key += "é";
  const auto problems = job_problems("command: x\n" + key + ": 1\nbundle: " + key + "\n");
  REQUIRE(problems.size() == 2);
  CHECK(problems[0].size() < 120);
  CHECK(problems[0].find("é…: no such key") != std::string::npos);
  CHECK(problems[1].find("é…'") != std::string::npos);
}
