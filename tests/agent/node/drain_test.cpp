#include <doctest/doctest.h>

#include "agent/node/drain.hpp"

using dtrain::node::Drain;
using dtrain::node::kLeftBehindBytes;
using dtrain::node::kLeftBehindTime;
using namespace std::chrono_literals;

TEST_CASE("drain: what is the command's own is awaited however long the reader takes") {
  const Drain::Time end{};
  Drain drain(100, end);
  drain.stop(end);
  CHECK_FALSE(drain.left(end + 24h));
  drain.go_on(end + 24h);
  CHECK(drain.left(end + 25h) == kLeftBehindTime);  // to be read now; later it is looked again
  drain.took(60);
  CHECK(drain.left(end + 25h) == kLeftBehindTime);
  drain.took(40);
  CHECK(drain.left(end + 25h) == 0s);
}

TEST_CASE("drain: others have a time, in which the reader's does not count") {
  const Drain::Time end{};
  Drain drain(0, end);
  CHECK(drain.left(end + 300ms) == 700ms);
  drain.stop(end + 300ms);
  CHECK_FALSE(drain.left(end + 10s));
  drain.go_on(end + 10s);
  drain.took(1000);
  CHECK(drain.left(end + 10s) == 700ms);
  CHECK(drain.left(end + 11s) == 0s);
}

TEST_CASE("drain: others that never stop end also with a reader that is always slow") {
  const Drain::Time end{};
  Drain drain(10, end);
  drain.stop(end);
  drain.took(10 + kLeftBehindBytes);
  CHECK_FALSE(drain.left(end + 10s));
  drain.took(1);
  CHECK_FALSE(drain.left(end + 500ms));
  CHECK(drain.left(end + 10s) == 0s);
}
