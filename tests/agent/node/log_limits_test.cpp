#include "agent/node/log_limits.hpp"

#include <doctest/doctest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <fstream>

#include "launcher/core/kept_log.hpp"
#include "launcher/wire/json.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
const node::LogLimits::Key kLimited{JobId("job-1"), 1};

// A node with one attempt of two ranks, and what its head has of their logs.
struct LimitsWorld {
  TemporaryFolder folder;
  paths::NodeRoot root{folder.path()};
  boost::asio::io_context context;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{
      context.get_executor()};
  std::optional<node::LogLimits::Taken> taken;
  std::vector<wire::LogsReleased> said;
  int looks = 0;
  node::LogLimits limits{context.get_executor(),
                         root,
                         {[this](const node::LogLimits::Key&) {
                            ++looks;
                            return taken;
                          },
                          [this](const wire::LogsReleased& news) { said.push_back(news); }}};

  explicit LimitsWorld(std::uint64_t limit) {
    wire::AttemptSpec spec;
    spec.cluster = ClusterId("lab-abcdef");
    spec.job = kLimited.first;
    spec.node = NodeId("node-0");
    spec.token = "t";
    spec.command = {"true"};
    spec.first_rank = 2;
    spec.nproc = 2;
    spec.world_size = 4;
    spec.log_limit = limit;
    fs::create_directories(of().ranks());
    write_file_atomic(of().spec(), wire::dump(wire::to_json(spec)));
  }
  paths::AttemptRoot of() const { return paths::attempt(root, kLimited.first, kLimited.second); }
  void write(const fs::path& log, std::uint64_t bytes) const {
    std::ofstream(log, std::ios::app) << std::string(bytes, 'x');
  }
  template <typename Ready>
  void run_until(Ready ready) {
    while (!ready()) REQUIRE(context.run_one_for(dtrain::testing::kPatience) == 1);
  }
  // Whole looks that begin from now on.
  void look(int times = 2) {
    run_until([this, until = looks + times + 1] { return looks >= until; });
  }
};

}  // namespace

TEST_CASE("log limit: nothing goes before the head has said whether it has copies") {
  LimitsWorld world(16 * kMiB);
  world.write(world.of().out(2), 20 * kMiB);
  world.limits.follow(kLimited);
  CHECK(world.context.poll() == 0);
  world.limits.head_joined();
  world.run_until([&] { return !world.said.empty(); });
  CHECK(released_of(world.of().out(2)) == 5 * kMiB);
  CHECK(released_of(world.of().err(2)) == 0);
  CHECK(world.said.front().job == kLimited.first);
  CHECK(world.said.front().error.empty());
}

TEST_CASE("log limit: what the head has no copy of stays, each stream by itself") {
  LimitsWorld world(16 * kMiB);
  world.taken.emplace();
  world.write(world.of().out(2), 20 * kMiB);
  world.write(world.of().err(3), 30 * kMiB);
  world.limits.follow(kLimited);
  world.limits.head_joined();
  world.look();
  CHECK(released_of(world.of().out(2)) == 0);
  (*world.taken)["3.err"] = 4 * kMiB + 9;
  (*world.taken)["2.out"] = 20 * kMiB;
  world.run_until([&] { return !world.said.empty(); });
  CHECK(released_of(world.of().out(2)) == 5 * kMiB);
  CHECK(released_of(world.of().err(3)) == 4 * kMiB);
}

TEST_CASE("log limit: said once on each connection, and again by an agent that is started anew") {
  LimitsWorld world(16 * kMiB);
  world.write(world.of().out(2), 20 * kMiB);
  world.limits.follow(kLimited);
  world.limits.head_joined();
  world.run_until([&] { return world.said.size() == 1; });
  world.write(world.of().out(2), 20 * kMiB);
  world.run_until([&] { return released_of(world.of().out(2)) == 25 * kMiB; });
  world.look();
  CHECK(world.said.size() == 1);
  world.limits.head_joined();
  world.run_until([&] { return world.said.size() == 2; });
  std::vector<wire::LogsReleased> again;
  node::LogLimits next(world.context.get_executor(), world.root,
                       {[](const node::LogLimits::Key&) { return node::LogLimits::Taken{}; },
                        [&](const wire::LogsReleased& news) { again.push_back(news); }});
  next.follow(kLimited);
  next.head_joined();
  world.run_until([&] { return !again.empty(); });
}

TEST_CASE("log limit: the last look is after the end, unless the head lacks something") {
  for (const bool whole : {true, false}) {
    CAPTURE(whole);
    LimitsWorld world(16 * kMiB);
    world.taken.emplace();
    world.write(world.of().out(2), 40 * kMiB);
    world.limits.follow(kLimited);
    world.limits.head_joined();
    world.look();
    world.limits.end(kLimited, whole);
    if (whole) world.run_until([&] { return !world.said.empty(); });
    // Nobody looks any longer.
    while (world.context.run_one_for(std::chrono::milliseconds(700)) > 0) {
    }
    CHECK(released_of(world.of().out(2)) == (whole ? 25 * kMiB : 0));
  }
}

TEST_CASE("log limit: a job without one is left alone") {
  LimitsWorld world(0);
  world.write(world.of().out(2), 20 * kMiB);
  world.limits.follow(kLimited);
  world.limits.head_joined();
  while (world.context.run_one_for(std::chrono::milliseconds(700)) > 0) {
  }
  CHECK(world.looks == 1);
  CHECK(released_of(world.of().out(2)) == 0);
}
