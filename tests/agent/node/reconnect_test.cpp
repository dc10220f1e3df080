#include "agent/node/reconnect.hpp"

#include <doctest/doctest.h>

#include <set>

using dtrain::node::Reconnect;
using namespace std::chrono_literals;

TEST_CASE(
    "reconnect: twice as long each time, by chance, and short again once the head was there") {
  std::set<std::chrono::milliseconds::rep> last;
  for (int node = 0; node < 100; ++node) {
    Reconnect pauses;
    for (std::chrono::milliseconds most = Reconnect::kFirst; most < Reconnect::kLast; most *= 2) {
      const auto pause = pauses.next();
      CHECK(pause >= most / 2);
      CHECK(pause <= most);
    }
    const auto pause = pauses.next();
    CHECK(pause >= Reconnect::kLast / 2);
    CHECK(pause <= Reconnect::kLast);
    last.insert(pause.count());
    pauses.begin();
    CHECK(pauses.next() <= Reconnect::kFirst);
  }
  CHECK(last.size() > 50);  // of 100 nodes, over 2.5 s
}
