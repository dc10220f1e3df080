#include "agent/head/server/greetings.hpp"

#include <doctest/doctest.h>

#include <set>

using dtrain::head::Greetings;

namespace {

struct Door {
  std::uint64_t knock(const std::string& source) {
    const std::uint64_t expected = ++knocks;
    const std::uint64_t number =
        greetings.enter(source, [this, expected] { dropped.insert(expected); });
    CHECK(number == expected);
    return number;
  }

  Greetings greetings{3, 5};
  std::uint64_t knocks = 0;
  std::set<std::uint64_t> dropped;
};

}  // namespace

TEST_CASE("greetings: who opens too many drives out his own oldest") {
  Door door;
  const std::uint64_t node = door.knock("10.0.0.2");
  for (int i = 0; i < 10; ++i) door.knock("10.0.0.9");
  CHECK(door.greetings.size() == 4);
  CHECK(door.dropped == std::set<std::uint64_t>{2, 3, 4, 5, 6, 7, 8});
  door.greetings.leave(node);
  door.greetings.leave(node);
  CHECK(door.greetings.size() == 3);
  CHECK(door.greetings.dropped() == 7);
}

TEST_CASE("greetings: when all places are taken the address with most gives one up") {
  Door door;
  for (const char* source : {"a", "b", "b", "b", "c"}) door.knock(source);
  door.knock("d");
  CHECK(door.dropped == std::set<std::uint64_t>{2});
  CHECK(door.greetings.size() == 5);
  CHECK(door.greetings.drop_one());
  CHECK(door.dropped == std::set<std::uint64_t>{2, 3});
  for (std::uint64_t number = 1; number <= 6; ++number) door.greetings.leave(number);
  CHECK_FALSE(door.greetings.drop_one());
}
