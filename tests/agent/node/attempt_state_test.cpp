#include "agent/node/attempt_state.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace dtrain::node;
using enum AttemptState;
using enum AttemptNews;

namespace {

AttemptState after(const std::vector<AttemptNews>& news) {
  AttemptState state = known;
  for (const AttemptNews each : news) state = next(state, each);
  return state;
}

}  // namespace

TEST_CASE("an attempt goes from told to done") {
  CHECK(after({told}) == preparing);
  CHECK(after({told, spawned}) == starting);
  CHECK(after({told, spawned, hello}) == supervised);
  CHECK(after({told, spawned, hello, finished}) == ended);
  CHECK(after({told, spawned, hello, finished, over}) == done);
}

TEST_CASE("a repeat starts nothing anew") {
  CHECK(after({told, spawned, told}) == starting);
  CHECK(after({hello, told}) == supervised);
  CHECK(after({told, spawned, hello, finished, told}) == ended);
  CHECK(after({over, told}) == done);
}

TEST_CASE("what was started before us is found, whatever it says meanwhile") {
  CHECK(after({told, found}) == supervised);
  CHECK(after({told, hello}) == preparing);
  CHECK(after({told, hello, found}) == supervised);
  CHECK(after({told, finished, found}) == ended);
}

TEST_CASE("one that does not start is killed once") {
  CHECK(after({told, spawned, stuck}) == supervised);
  CHECK(after({told, spawned, finished, stuck}) == ended);
}
