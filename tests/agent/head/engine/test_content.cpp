#include <doctest/doctest.h>

#include "tests/agent/head/engine/world.hpp"

using namespace dtrain;
using namespace dtrain::head;
using dtrain::head::testing::World;
using namespace std::chrono_literals;

namespace {

// A world that keeps what nodes are asked to bring.
class Sending : public World {
 public:
  explicit Sending(int nodes) : World(nodes) {}

  void stage(const NodeId& node, const wire::Stage& wanted) override {
    staged.emplace_back(node.str(), wanted);
  }
  void unstage(const NodeId& node, const JobId&, int) override { given_up.push_back(node.str()); }

  JobId submit_sent(int nodes, const std::string& glibc = "", int max_restarts = 0) {
    JobSpec job = World::spec("sent");
    job.nnodes = {nodes, nodes};
    job.max_restarts = max_restarts;
    job.content.emplace();
    job.content->workdir_tree = std::string(64, 'a');
    job.content->glibc = glibc;
    job.content->glibc_of = "train";
    job.content->size = 1000;
    return submit(job);
  }
  void say_staging(const std::string& node, const JobId& job, int attempt, std::uint64_t done,
                   bool ready) {
    engine->staging(NodeId(node), {job, attempt, done, 1000, ready});
  }
  void join_with(const std::string& node, const std::string& glibc) {
    NodeInfo info;
    info.node = NodeId(node);
    info.address = "10.0.0.9";
    info.boot_id = "boot";
    info.machine = node;
    info.cpus = 4;
    info.memory = std::uint64_t{8} << 30;
    info.glibc = glibc;
    engine->joined(info);
  }
  std::string reason(const JobId& job) { return engine->job(job).at("reason"); }
  // A job of node-0's, of which the head that began to send it has died.
  JobId left_staging() {
    join("node-0");
    const JobId id = submit_sent(1);
    until([&] { return staged.size() == 1; });
    settle();
    restart();
    CHECK(state(id) == "staging");
    return id;
  }

  std::vector<std::pair<std::string, wire::Stage>> staged;
  std::vector<std::string> given_up;
};

}  // namespace

TEST_CASE("every node brings the files before any rank is started") {
  Sending world(2);
  world.join("node-0");
  world.join("node-1");
  const JobId id = world.submit_sent(2);
  world.until([&] { return world.staged.size() == 2; });
  CHECK(world.state(id) == "staging");
  CHECK(world.starts.empty());
  CHECK(world.staged[0].second.content.workdir_tree == std::string(64, 'a'));
  // Only for the nodes of this attempt, and only while it is under way.
  CHECK(world.engine->content_for(NodeId("node-0"), id, 1).has_value());
  CHECK_FALSE(world.engine->content_for(NodeId("node-0"), id, 2).has_value());
  CHECK_FALSE(world.engine->content_for(NodeId("node-7"), id, 1).has_value());
  CHECK_FALSE(world.engine->content_for(NodeId("node-0"), JobId("other-aaaaaa"), 1).has_value());

  world.say_staging("node-1", id, 1, 400, false);
  CHECK(world.reason(id) == "node-1 has 400 B of 1000 B");
  world.say_staging("node-0", id, 1, 1000, true);
  world.settle();
  CHECK(world.state(id) == "staging");
  CHECK(world.starts.empty());
  world.say_staging("node-1", id, 1, 1000, true);
  const wire::AttemptSpec spec = world.started("node-0", id, 1);
  REQUIRE(spec.content.has_value());
  CHECK(world.state(id) == "starting");
  CHECK(world.given_up.empty());
}

TEST_CASE("a node that cannot bring the files ends the attempt, and is named") {
  Sending world(2);
  world.join("node-0");
  world.join("node-1");
  const JobId id = world.submit_sent(2, "", 1);
  for (int attempt = 1; attempt <= 2; ++attempt) {
    CAPTURE(attempt);
    world.until([&] { return world.staged.size() == static_cast<std::size_t>(2 * attempt); });
    world.engine->start_failed(NodeId("node-1"), id, attempt,
                               Error(ErrorCode::exhausted, "no room: 3 GiB wanted, 1 MiB free"));
    world.settle();
    // The other one need not go on.
    CHECK(world.given_up.size() == static_cast<std::size_t>(attempt));
    CHECK(world.given_up.back() == "node-0");
  }
  world.until([&] { return world.state(id) == "failed"; });
  world.settle();
  const std::string message = world.engine->job(id).at("error").at("message");
  CHECK(message.find("node-1") != std::string::npos);
  CHECK(message.find("3 GiB wanted, 1 MiB free") != std::string::npos);
  CHECK(world.starts.empty());
}

TEST_CASE("a stop while files are brought starts nothing") {
  Sending world(1);
  world.join("node-0");
  const JobId id = world.submit_sent(1);
  world.until([&] { return world.staged.size() == 1; });
  world.engine->stop(id, std::nullopt, [](const nlohmann::json&) {});
  world.until([&] { return world.state(id) == "stopped"; });
  CHECK(world.given_up == std::vector<std::string>{"node-0"});
  world.say_staging("node-0", id, 1, 1000, true);
  world.settle();
  CHECK(world.starts.empty());
}

TEST_CASE("a head that is started anew asks again") {
  Sending world(1);
  const JobId id = world.left_staging();
  world.join("node-0");
  world.until([&] { return world.staged.size() == 2; });
  // So does a node that comes back.
  world.engine->gone(NodeId("node-0"));
  world.join("node-0");
  world.until([&] { return world.staged.size() == 3; });
  world.say_staging("node-0", id, 1, 1000, true);
  CHECK(world.started("node-0", id, 1).content.has_value());
}

TEST_CASE("a program that is too new for the nodes is refused, or goes to those that are not old") {
  Sending world(2);
  world.join_with("node-0", "2.17");
  world.join_with("node-1", "2.36");
  JobSpec job = World::spec("new");
  job.content.emplace();
  job.content->glibc = "2.34";
  job.content->glibc_of = "libc10.so";
  CHECK_NOTHROW(world.engine->check_content(job));
  job.nnodes = {2, 2};
  try {
    world.engine->check_content(job);
    FAIL("node-0 is too old");
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* part : {"libc10.so", "2.34", "node-0", "2.17"}) {
      CAPTURE(part);
      CHECK(text.find(part) != std::string::npos);
    }
  }
  CHECK_THROWS_AS((void)world.engine->plan(job), Error);
  job.content->glibc = "2.17";
  CHECK_NOTHROW(world.engine->check_content(job));

  const JobId id = world.submit_sent(1, "2.34");
  world.until([&] { return !world.staged.empty(); });
  CHECK(world.staged[0].first == "node-1");
  CHECK(world.state(id) == "staging");
}

TEST_CASE(
    "ranks that a head began before it was durable that their files are in place end as any") {
  Sending world(1);
  const JobId id = world.left_staging();
  world.join("node-0", {{id, 1}});
  world.start_ranks("node-0", id, 1, 0, 1);
  CHECK(world.state(id) == "running");
  world.exit_rank("node-0", id, 1, 0, 0);
  world.finish("node-0", id, 1, wire::NodeFinished::Outcome::succeeded);
  world.settle();
  CHECK(world.state(id) == "succeeded");
}
