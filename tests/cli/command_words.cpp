#include "cli/command_words.hpp"

#include <doctest/doctest.h>

#include "launcher/core/error.hpp"

using namespace dtrain;
using namespace dtrain::cli;

using Words = std::vector<std::string>;

TEST_CASE("after -- stands a program, also where it is one word") {
  const auto one = command_words(Words{"a | b"}, {});
  REQUIRE(one);
  CHECK(one->words == Words{"a | b"});
  CHECK_FALSE(one->shell);
  const auto more = command_words(Words{"./train", "-x"}, {});
  REQUIRE(more);
  CHECK_FALSE(more->shell);
}

TEST_CASE("without -- one argument is a line for the shell, several are a program") {
  const auto line = command_words(std::nullopt, {"ls | wc -l"});
  REQUIRE(line);
  CHECK(line->shell);
  CHECK(command_words(std::nullopt, {"hostname"})->shell);
  const auto more = command_words(std::nullopt, {"df", "/"});
  REQUIRE(more);
  CHECK(more->words == Words{"df", "/"});
  CHECK_FALSE(more->shell);
}

TEST_CASE("nothing, and too much") {
  CHECK_FALSE(command_words(std::nullopt, {}));
  CHECK_THROWS_AS(command_words(Words{}, {}), Error);
  CHECK_THROWS_AS(command_words(Words{"a"}, {"b"}), Error);
}
