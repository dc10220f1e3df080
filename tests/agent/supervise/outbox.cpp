#include "agent/supervise/outbox.hpp"

#include <doctest/doctest.h>

#include "launcher/core/error.hpp"

using namespace dtrain;
using nlohmann::json;
using supervise::Outbox;

namespace {

const Monotonic kStart{std::chrono::hours(1)};

json progress(int step) {
  return {{"type", "progress"}, {"step", step}};
}
json heartbeat() {
  return {{"type", "heartbeat"}};
}

std::vector<int> steps_after(const Outbox& outbox, std::uint64_t seq) {
  std::vector<int> steps;
  while (const auto* event = outbox.after(seq)) {
    seq = event->seq;
    steps.push_back(json::parse(event->line)["body"].value("step", -1));
  }
  return steps;
}

}  // namespace

TEST_CASE("events are kept in order until they are acknowledged") {
  Outbox outbox;
  CHECK(outbox.after(0) == nullptr);
  CHECK(outbox.push(wire::SetupStarted{}) == 1);
  CHECK(outbox.push(wire::MasterReady{1}) == 2);
  CHECK(outbox.push(wire::MasterReady{2}) == 3);
  CHECK(outbox.after(0)->seq == 1);
  CHECK(outbox.after(2)->seq == 3);
  CHECK(outbox.after(3) == nullptr);
  outbox.acknowledge(2);
  CHECK(outbox.after(0)->seq == 3);
  CHECK(outbox.after(2)->seq == 3);
  outbox.acknowledge(1);  // late, harmless
  CHECK(outbox.after(0)->seq == 3);
  CHECK_THROWS_AS(outbox.acknowledge(4), Error);
  outbox.acknowledge(3);
  CHECK(outbox.empty());
  CHECK(outbox.push(wire::SetupStarted{}) == 4);
}

TEST_CASE("one progress of a rank is on its way, the newest waits") {
  const auto later = [](int ms) { return kStart + std::chrono::milliseconds(ms); };
  Outbox outbox;
  for (int step = 1; step <= 100; ++step) {
    outbox.push_passing(0, progress(step), kStart);
    CHECK_FALSE(outbox.send_due(kStart));
  }
  outbox.push_passing(1, progress(1000), kStart);
  CHECK_FALSE(outbox.send_due(later(5000)));
  CHECK(steps_after(outbox, 0) == std::vector<int>{1, 1000});
  outbox.acknowledge(1);
  CHECK_FALSE(outbox.send_due(later(5000)));
  CHECK(steps_after(outbox, 2) == std::vector<int>{100});
  outbox.acknowledge(3);
  outbox.push_passing(0, progress(101), later(5200));
  CHECK_FALSE(outbox.send_due(later(5200)));
  outbox.push_passing(0, progress(102), later(5200));
  CHECK_FALSE(outbox.send_due(later(5200)));
  outbox.flush_passing(0);
  outbox.flush_passing(0);
  outbox.flush_passing(7);
  CHECK(steps_after(outbox, 3) == std::vector<int>{101, 102});
}

TEST_CASE("progress goes out five times a second of rank 0, once of others") {
  const auto later = [](int ms) { return kStart + std::chrono::milliseconds(ms); };
  Outbox outbox;
  int sent_of_0 = 0;
  int sent_of_1 = 0;
  std::uint64_t seen = 0;
  for (int ms = 0; ms < 10000; ms += 10) {
    for (const int rank : {0, 1}) outbox.push_passing(rank, progress(ms + rank), later(ms));
    const auto again = outbox.send_due(later(ms));
    if (again) CHECK(*again <= later(ms + 1000));
    while (const auto* event = outbox.after(seen)) {
      seen = event->seq;
      const int step = json::parse(event->line)["body"].value("step", -1);
      CHECK(step == ms + step % 10);  // the newest
      ++(step % 10 == 0 ? sent_of_0 : sent_of_1);
    }
    outbox.acknowledge(seen);
  }
  CHECK(sent_of_0 == 50);
  CHECK(sent_of_1 == 10);
}

TEST_CASE("heartbeats go out once a second, and not beside progress") {
  Outbox outbox;
  outbox.push_passing(0, heartbeat(), kStart);
  CHECK(outbox.last_seq() == 1);
  outbox.push_passing(0, heartbeat(), kStart + std::chrono::seconds(5));
  CHECK(outbox.last_seq() == 1);  // one is on its way
  outbox.acknowledge(1);
  outbox.push_passing(0, heartbeat(), kStart + std::chrono::milliseconds(999));
  CHECK(outbox.last_seq() == 1);
  outbox.push_passing(0, heartbeat(), kStart + std::chrono::milliseconds(1000));
  CHECK(outbox.last_seq() == 2);
}

TEST_CASE("heartbeats of a node go as one event, once a second, each rank's newest") {
  Outbox outbox;
  const auto beat = [](int rank, std::int64_t step) {
    return wire::RankBeat{rank, step, "", std::nullopt};
  };
  // Rank and step of each in the event after `seq`.
  const auto sent = [&](std::uint64_t seq) {
    std::vector<std::pair<int, int>> list;
    const auto* event = outbox.after(seq);
    REQUIRE(event != nullptr);
    CHECK(event->passing);
    const json line = json::parse(event->line);
    CHECK(line["type"] == "beats");
    for (const json& each : line["beats"]) list.emplace_back(each["rank"], each["step"]);
    return list;
  };
  using List = std::vector<std::pair<int, int>>;
  const auto second = std::chrono::seconds(1);
  CHECK_FALSE(outbox.send_due(kStart).has_value());
  CHECK(outbox.empty());
  for (int rank = 3; rank >= 0; --rank) outbox.push_beat(beat(rank, 1));
  outbox.push_beat(beat(2, 2));
  CHECK_FALSE(outbox.send_due(kStart).has_value());
  CHECK(sent(0) == List{{0, 1}, {1, 1}, {2, 2}, {3, 1}});
  // While it is on its way the others wait, however long that takes.
  outbox.push_beat(beat(1, 3));
  CHECK_FALSE(outbox.send_due(kStart + 5 * second).has_value());
  CHECK(outbox.last_seq() == 1);
  outbox.push_beat(beat(1, 4));
  outbox.push_beat(beat(3, 4));
  outbox.flush_passing(3);  // it has ended
  outbox.acknowledge(1);
  CHECK_FALSE(outbox.send_due(kStart + 5 * second).has_value());
  CHECK(sent(1) == List{{1, 4}});
  outbox.acknowledge(2);
  outbox.push_beat(beat(0, 5));
  CHECK(outbox.send_due(kStart + 5 * second) == kStart + 6 * second);
  CHECK(outbox.last_seq() == 2);
  CHECK_FALSE(outbox.send_due(kStart + 6 * second).has_value());
  CHECK(sent(2) == List{{0, 5}});
  CHECK(outbox.lasting(wire::NodeFinished{}).size() == 1);
}

TEST_CASE("heartbeats go on while an event before them is not acknowledged") {
  Outbox outbox;
  const auto beats_at = [&](int seconds, std::uint64_t seq) {
    outbox.push_beat({0, seconds, "", std::nullopt});
    CHECK_FALSE(outbox.send_due(kStart + std::chrono::seconds(seconds)).has_value());
    CHECK(outbox.last_seq() == seq);
  };
  outbox.push(wire::RankReport{0, {{"type", "checkpoint"}}});
  for (int i = 1; i <= 10000; ++i) {
    const auto seq = static_cast<std::uint64_t>(i) + 1;
    beats_at(i, seq);
    CHECK(outbox.after(1)->seq == seq);
    outbox.heard(seq);
    CHECK(outbox.after(1) == nullptr);
    CHECK(outbox.after(0)->seq == 1);
  }
  CHECK_FALSE(outbox.full());
  outbox.heard(7);  // once more
  beats_at(10001, 10002);
  outbox.heard(9);
  CHECK(outbox.after(1)->seq == 10002);
  const auto last = outbox.push(wire::SetupStarted{});
  outbox.heard(10002);
  CHECK(outbox.after(1)->seq == last);
  outbox.acknowledge(10002);
  CHECK(outbox.after(0)->seq == last);
  outbox.acknowledge(last);
  CHECK(outbox.empty());
}

TEST_CASE("what the head has makes room, whatever waits before it") {
  Outbox outbox;
  outbox.push(wire::RankReport{0, {{"type", "checkpoint"}}});
  const std::uint64_t first = outbox.last_seq() + 1;
  while (!outbox.full()) outbox.push(wire::RankReport{0, {{"type", "metrics"}}});
  outbox.push_passing(1, progress(1), kStart);
  CHECK_FALSE(outbox.send_due(kStart).has_value());
  const std::uint64_t last = outbox.last_seq();
  outbox.push_passing(1, progress(2), kStart);
  CHECK_FALSE(outbox.send_due(kStart + std::chrono::seconds(1)).has_value());
  CHECK(outbox.last_seq() == last);  // one is on its way
  for (std::uint64_t seq = first; seq <= last; ++seq) outbox.heard(seq);
  CHECK(outbox.relaxed());
  CHECK(outbox.after(0)->seq == 1);
  CHECK(outbox.after(1) == nullptr);
  CHECK_FALSE(outbox.send_due(kStart + std::chrono::seconds(1)).has_value());
  CHECK(steps_after(outbox, 1) == std::vector<int>{2});
  outbox.acknowledge(1);
  CHECK(outbox.after(0)->seq == last + 1);
}

TEST_CASE("it is full by number and by bytes, and relaxes at half") {
  Outbox outbox;
  SUBCASE("number") {
    for (std::size_t i = 0; i < Outbox::kEventsMax; ++i) outbox.push(wire::SetupStarted{});
    CHECK_FALSE(outbox.full());
    outbox.push(wire::SetupStarted{});
    CHECK(outbox.full());
    outbox.acknowledge(Outbox::kEventsMax / 2);
    CHECK_FALSE(outbox.full());
    CHECK_FALSE(outbox.relaxed());
    outbox.acknowledge(Outbox::kEventsMax / 2 + 1);
    CHECK(outbox.relaxed());
  }
  SUBCASE("bytes") {
    const wire::AttemptWarning large{std::nullopt, std::string(1 << 20, 'x')};
    for (int i = 0; i < 16; ++i) outbox.push(large);
    CHECK(outbox.full());
    outbox.acknowledge(16);
    CHECK(outbox.relaxed());
  }
}

TEST_CASE("what lasts is all that is not acknowledged but progress, and the end") {
  Outbox outbox;
  outbox.push(wire::SetupStarted{});
  outbox.push_passing(0, progress(1), kStart);
  CHECK_FALSE(outbox.send_due(kStart));
  outbox.push(wire::AttemptWarning{0, "w"});
  outbox.acknowledge(1);
  const auto lines = outbox.lasting(wire::NodeFinished{});
  REQUIRE(lines.size() == 2);
  CHECK(json::parse(lines[0])["seq"] == 3);
  CHECK(json::parse(lines[1])["seq"] == 4);
  CHECK(json::parse(lines[1])["type"] == "finished");
}
