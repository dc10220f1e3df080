#include "trainer/train/watch.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "tests/trainer/support/fake_supervisor.hpp"
#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using nlohmann::json;
using test::contains;

namespace {

// What several ranks would share.
class FakeBoard {
 public:
  Board board() {
    return {.write =
                [this](const std::string& name, const std::string& text) {
                  const std::lock_guard lock(mutex_);
                  texts_[name] = text;
                },
            .read = [this](const std::string& name) -> std::optional<std::string> {
              const std::lock_guard lock(mutex_);
              const auto found = texts_.find(name);
              return found == texts_.end() ? std::nullopt : std::optional(found->second);
            }};
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> texts_;
};

Environment rank_of(int rank, int size) {
  Environment env;
  env.rank = rank;
  env.world_size = size;
  return env;
}

Call long_ago(Call call) {
  call.begun -= std::chrono::hours(1);
  return call;
}

}  // namespace

TEST_CASE("heartbeats say step, phase, and the last collective") {
  const test::TemporaryFolder folder;
  test::FakeSupervisor supervisor(folder / "s");
  Environment env;
  env.report_socket = folder / "s";
  SUBCASE("of one rank") {
    Watch watch(env, {}, {.beat = std::chrono::milliseconds(5)});
    CHECK(supervisor.read_line() == json{{"type", "heartbeat"}, {"step", 0}});
    watch.set_step(7);
    json line;
    do line = supervisor.read_line();
    while (line["step"] == 0);
    CHECK(line == json{{"type", "heartbeat"}, {"step", 7}});
    CHECK(std::string(watch.set_phase("data")).empty());
    do line = supervisor.read_line();
    while (!line.contains("phase"));
    CHECK(line == json{{"type", "heartbeat"}, {"step", 7}, {"phase", "data"}});
    CHECK(std::string(watch.set_phase("compute")) == "data");
    watch.write("a", "b");  // there is no board
    CHECK_FALSE(watch.read("a").has_value());
  }
  SUBCASE("of one of several") {
    FakeBoard shared;
    const auto calls = std::make_shared<Calls>();
    calls->begin("barrier", "", 0);
    const Call call = calls->begin("allreduce", "Float", 3, 12);
    const Watch watch(env, {.group = nullptr, .calls = calls, .board = shared.board()},
                      {.beat = std::chrono::milliseconds(5)});
    json line = supervisor.read_line();
    const json entered = line["collective"]["entered"];
    CHECK(std::abs(entered.get<double>() - std::chrono::duration<double>(
                                               std::chrono::system_clock::now().time_since_epoch())
                                               .count()) < 60);
    CHECK(line["collective"] == json{{"sequence", 2},
                                     {"name", "allreduce"},
                                     {"bytes", 12},
                                     {"entered", entered},
                                     {"done", false}});
    CHECK_FALSE(calls->has_ended(call));
    calls->end(call);
    CHECK(calls->has_ended(call));
    do line = supervisor.read_line();
    while (line["collective"]["done"] == false);
    CHECK(line["collective"]["sequence"] == 2);
    CHECK(line["collective"]["entered"] == entered);
    // The next one has not ended because the last has.
    CHECK_FALSE(calls->has_ended(calls->begin("barrier", "", 0)));
  }
  SUBCASE("of one that stands still they come every so often, of one that moves at once") {
    Watch watch(env, {},
                {.beat = std::chrono::minutes(10), .moving = std::chrono::milliseconds(5)});
    CHECK(supervisor.read_line()["step"] == 0);
    watch.set_step(3);
    CHECK(supervisor.read_line()["step"] == 3);
  }
}

TEST_CASE("the rank whose last call is the oldest is the slowest") {
  FakeBoard shared;
  const auto calls_of = [](int count) {
    auto calls = std::make_shared<Calls>();
    for (int i = 0; i < count; ++i) calls->begin("broadcast", "Double", 5);
    return calls;
  };
  const auto mine = calls_of(9);
  const Watch::Options often{.beat = std::chrono::milliseconds(5)};
  Watch first(rank_of(0, 3), {.group = nullptr, .calls = mine, .board = shared.board()}, often);
  CHECK(first.explain(mine->last()) == "");  // it failed at once
  CHECK(first.explain(long_ago(mine->last())) == "; the slowest is rank 1, which says nothing");
  // Each puts its call on the board when it begins: an answer comes after that.
  Watch second(rank_of(1, 3), {.group = nullptr, .calls = calls_of(8), .board = shared.board()},
               often);
  Watch third(rank_of(2, 3), {.group = nullptr, .calls = calls_of(7), .board = shared.board()},
              often);
  second.read("");
  second.read("");
  third.read("");
  third.read("");
  CHECK(first.explain(long_ago(mine->last())) ==
        "; the slowest is rank 2: its last call was broadcast #7 (5 Double), at step 0");
  CHECK(first.explain(long_ago(calls_of(7)->last())) == "; every rank has come to it");
}

TEST_CASE("a board that does not answer holds nobody up for long") {
  std::promise<void> answers;
  std::shared_future<void> never = answers.get_future().share();
  Board board{.write = [never](const std::string&, const std::string&) { never.wait(); },
              .read = [never](const std::string&) -> std::optional<std::string> {
                never.wait();
                return std::nullopt;
              }};
  const auto calls = std::make_shared<Calls>();
  Watch watch(rank_of(0, 2), {.group = nullptr, .calls = calls, .board = board});
  CHECK_FALSE(watch.read("a").has_value());
  CHECK(watch.explain(long_ago(calls->begin("barrier", "", 0))) ==
        "; the group's store does not answer");
  CHECK_FALSE(watch.end());
  answers.set_value();
  CHECK(watch.end());
}
