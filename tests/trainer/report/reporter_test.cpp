#include "trainer/report/reporter.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>

#include "tests/trainer/support/fake_supervisor.hpp"
#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using nlohmann::json;
using test::contains;
using test::FakeSupervisor;
using test::message_of;
using test::TemporaryFolder;

namespace {

struct World {
  TemporaryFolder folder;
  std::chrono::steady_clock::time_point now{};
  std::vector<std::string> warnings;

  std::filesystem::path socket() const { return folder / "s"; }
  Reporter::Options options() {
    Reporter::Options options;
    options.now = [this] { return now; };
    options.warn = [this](const std::string& message) { warnings.push_back(message); };
    return options;
  }
};

}  // namespace

TEST_CASE("reports are the contract's lines") {
  World world;
  FakeSupervisor supervisor(world.socket());
  Reporter reporter(world.socket(), world.options());
  reporter.metrics(10, {{"loss", 0.5}, {"worst", std::nan("")}});
  CHECK(supervisor.read_line() ==
        json::parse(R"({"type":"metrics","step":10,"metrics":{"loss":0.5,"worst":"nan"}})"));
  reporter.heartbeat({.step = 11, .phase = "", .collective = {}});
  CHECK(supervisor.read_line() == json::parse(R"({"type":"heartbeat","step":11})"));
  Heartbeat heartbeat{11, "data", Heartbeat::Collective{9, "all_reduce", 4096, 7.5, false}};
  reporter.heartbeat(heartbeat);
  CHECK(supervisor.read_line() ==
        json::parse(R"({"type":"heartbeat","step":11,"phase":"data","collective":{"sequence":9,)"
                    R"("name":"all_reduce","bytes":4096,"entered":7.5,"done":false}})"));
  heartbeat.collective->done.reset();
  reporter.heartbeat(heartbeat);
  CHECK(supervisor.read_line()["collective"] == 9);
  heartbeat = {.step = 2, .phase = "", .collective = {}, .step_times = StepSums{2, 0.5}};
  reporter.heartbeat(heartbeat);
  CHECK(supervisor.read_line() ==
        json::parse(R"({"type":"heartbeat","step":2,"step_times":{"steps":2,"seconds":0.5}})"));
  heartbeat.step_times = StepSums{2, 0.5, 0.25, 0.125, 0.0, 0.1234567, 0.2, 0.3, 0.4};
  reporter.heartbeat(heartbeat);
  CHECK(supervisor.read_line()["step_times"] ==
        json::parse(R"({"steps":2,"seconds":0.5,"data":0.25,"compute":0.125,"communication":0.0,)"
                    R"("wait":0.123457,"p50":0.2,"p90":0.3,"max":0.4})"));
  reporter.progress(
      {.step = 12, .total = 20, .epoch = 1, .message = "a\nb", .metrics = {{"l", 1}}});
  CHECK(supervisor.read_line() ==
        json::parse(R"({"type":"progress","step":12,"total":20,"epoch":1,"message":"a\nb",)"
                    R"("metrics":{"l":1.0}})"));
  CHECK(world.warnings.empty());
}

TEST_CASE("progress comes at most every 200 ms, and at the end always") {
  World world;
  FakeSupervisor supervisor(world.socket());
  Reporter reporter(world.socket(), world.options());
  for (int step = 1; step <= 100; ++step) {
    reporter.progress({.step = step, .total = 100, .epoch = {}, .message = "", .metrics = {}});
    world.now += std::chrono::milliseconds(50);
  }
  reporter.heartbeat({});
  std::vector<int> steps;
  for (json line = supervisor.read_line(); line["type"] == "progress";
       line = supervisor.read_line()) {
    steps.push_back(line["step"].get<int>());
  }
  CHECK(steps.size() == 26);  // 1, 5, 9, …, 97, and 100
  CHECK(steps[1] == 5);
  CHECK(steps.back() == 100);
}

TEST_CASE("a checkpoint waits for its commit") {
  World world;
  FakeSupervisor supervisor(world.socket());
  Reporter reporter(world.socket(), world.options());
  auto committed = std::async(std::launch::async, [&] {
    return reporter.checkpoint(470, "/storage/.tmp/x", 0, 1, {{"accuracy", 0.9}});
  });
  const json line = supervisor.read_line();
  CHECK(line == json::parse(R"({"type":"checkpoint","step":470,"path":"/storage/.tmp/x","shard":0,)"
                            R"("shards":1,"metrics":{"accuracy":0.9},"ack":true})"));
  supervisor.answer(R"({"ok":true,"path":"/storage/checkpoints/checkpoint_000003"})");
  CHECK(committed.get() == "/storage/checkpoints/checkpoint_000003");
}

TEST_CASE("a checkpoint that is refused, or that nobody confirms, is an error") {
  World world;
  FakeSupervisor supervisor(world.socket());
  Reporter reporter(world.socket(), world.options());
  const auto refusal = [&](const std::function<void()>& other_side) {
    auto message = std::async(std::launch::async, [&] {
      return message_of<Error>([&] { reporter.checkpoint(5, "/x", 0, 1, {}); });
    });
    supervisor.hang_up();
    supervisor.read_line();
    other_side();
    return message.get();
  };
  CHECK(refusal([&] { supervisor.answer(R"({"error":"no space left"})"); }) ==
        "checkpoint of step 5 was not committed: no space left");
  CHECK(contains(refusal([&] { supervisor.hang_up(); }), "was closed"));
  CHECK(contains(refusal([&] { supervisor.answer("what?"); }), "not understood"));
  CHECK(contains(refusal([&] { supervisor.answer("[1]"); }), "not understood"));
}

TEST_CASE("a checkpoint that another rank's trouble keeps from coming, or a stop, is given up") {
  World world;
  FakeSupervisor supervisor(world.socket());  // it never answers
  Reporter reporter(world.socket(), world.options());
  std::stop_source stop;
  int asked = 0;
  const auto trouble = [&] {
    return ++asked < 2 ? std::nullopt : std::optional<std::string>("rank 1: no space");
  };
  CHECK(message_of<Error>([&] {
          reporter.checkpoint(5, "/x", 0, 2, {}, stop.get_token(), trouble);
        }) == "checkpoint of step 5 was not committed: rank 1: no space");
  CHECK(asked == 2);
  stop.request_stop();
  CHECK(message_of<Error>([&] { reporter.checkpoint(5, "/x", 0, 2, {}, stop.get_token()); }) ==
        "checkpoint of step 5 was not committed: it was given up");
}

TEST_CASE("a checkpoint waits for as long as its head is away, or has no room") {
  World world;
  FakeSupervisor supervisor(world.socket());
  Reporter reporter(world.socket(), world.options());
  std::promise<void> waits;
  int asked = 0;
  auto committed = std::async(std::launch::async, [&] {
    return reporter.checkpoint(5, "/x", 0, 1, {}, {}, [&] {
      world.now += std::chrono::hours(24);
      if (++asked == 3) waits.set_value();
      return std::nullopt;
    });
  });
  supervisor.read_line();
  waits.get_future().wait();
  supervisor.answer(R"({"ok":true,"path":"/storage/checkpoints/checkpoint_000003"})");
  CHECK(committed.get() == "/storage/checkpoints/checkpoint_000003");
}

TEST_CASE("a dead socket warns once and stops nothing; when it is back, reports are too") {
  World world;
  Reporter reporter(world.socket(), world.options());
  reporter.metrics(1, {{"a", 1}});
  reporter.metrics(2, {{"a", 1}});
  REQUIRE(world.warnings.size() == 1);
  CHECK(contains(world.warnings[0], "training goes on"));
  CHECK(contains(message_of<Error>([&] { reporter.checkpoint(1, "/x", 0, 1, {}); }),
                 "cannot connect"));

  FakeSupervisor supervisor(world.socket());
  reporter.metrics(3, {{"a", 1}});  // too early to try again
  world.now += std::chrono::seconds(6);
  reporter.metrics(4, {{"a", 1}});
  CHECK(supervisor.read_line()["step"] == 4);

  // The other side goes away and comes back between two reports.
  supervisor.hang_up();
  reporter.metrics(5, {{"a", 1}});
  CHECK(supervisor.read_line()["step"] == 5);
  CHECK(world.warnings.size() == 1);
}

TEST_CASE("a report that is too long is left out") {
  World world;
  FakeSupervisor supervisor(world.socket());
  Reporter reporter(world.socket(), world.options());
  reporter.progress(
      {.step = 1, .total = {}, .epoch = {}, .message = std::string(70000, 'x'), .metrics = {}});
  reporter.heartbeat({.step = 2, .phase = "", .collective = {}});
  CHECK(supervisor.read_line()["step"] == 2);
  REQUIRE(world.warnings.size() == 1);
  CHECK(contains(world.warnings[0], "too long"));
}

TEST_CASE("a socket that nobody reads is given up after the send timeout") {
  World world;
  FakeSupervisor supervisor(world.socket());
  Reporter::Options options = world.options();
  options.send_timeout = std::chrono::milliseconds(20);
  Reporter reporter(world.socket(), options);
  const Metrics many = [] {
    Metrics metrics;
    for (int i = 0; i < 200; ++i)
      metrics["metric_" + std::string(100, 'm') + std::to_string(i)] = i;
    return metrics;
  }();
  for (int step = 0; step < 1000 && world.warnings.empty(); ++step) reporter.metrics(step, many);
  CHECK(world.warnings.size() == 1);
}
