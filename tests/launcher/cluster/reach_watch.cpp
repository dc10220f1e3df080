#include "launcher/cluster/reach_watch.hpp"
#include "tests/support/patience.hpp"

#include <doctest/doctest.h>

using namespace dtrain;
using namespace std::chrono_literals;

TEST_CASE("what is said of a machine that is not reached") {
  const auto begun = ReachWatch::Clock::now();
  ReachTry last{"no answer from 10.0.0.6:22", 0, begun, begun + 30s};
  CHECK(not_reached_text(last, begun + 5s) ==
        "not reached for 5.0 s: no answer from 10.0.0.6:22; given up after 30.0 s");
  last.why = "it closed the connection before it said anything";
  last.tries = 12;
  CHECK(
      not_reached_text(last, begun + 15s) ==
      "not reached for 15.0 s: it closed the connection before it said anything (12 tries); given "
      "up after 30.0 s");
}

TEST_CASE("only what is not reached in time is told of, and no more when that is over") {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<NodeProgress> told;
  ReachWatch watch([&](const NodeProgress& progress) {
    const std::lock_guard lock(mutex);
    told.push_back(progress);
    changed.notify_all();
  });
  const auto now = ReachWatch::Clock::now();
  watch.reaching(NodeId("quick"), ReachTry{"no answer yet", 0, now, now + 30s});
  watch.reaching(NodeId("quick"), std::nullopt);
  // One that has been tried for long is due at once, as is another after it.
  for (const char* name : {"slow", "slower"}) {
    watch.reaching(NodeId(name), ReachTry{"refused", 3, now - 6s, now + 24s});
  }
  std::unique_lock lock(mutex);
  REQUIRE(changed.wait_for(lock, dtrain::testing::kPatience, [&] { return told.size() == 2; }));
  CHECK(told[0].node == NodeId("slow"));
  CHECK(told[1].node == NodeId("slower"));
  CHECK(told[0].state == NodeProgress::State::waiting);
  CHECK(told[0].text.find("refused (3 tries)") != std::string::npos);
}
