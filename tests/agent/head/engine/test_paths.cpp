#include <doctest/doctest.h>

#include <fstream>

#include "agent/head/store/checkpoints.hpp"
#include "launcher/core/error.hpp"
#include "launcher/files/sha256.hpp"
#include "tests/agent/head/engine/world.hpp"

// Whose file a reported path names: that of the machine on which the rank runs.

using namespace dtrain;
using namespace dtrain::head;
using dtrain::head::testing::World;
using dtrain::testing::TemporaryFolder;
using dtrain::testing::write;

namespace {

// Nodes on machines other than the head's, and a storage that all see.
struct Shared : World {
  JobId job;

  explicit Shared(int nodes) : World(nodes) {
    options.machine = "machine-head";
    restart();
    JobSpec wanted = spec();
    wanted.nnodes = {nodes, nodes};
    wanted.storage_path = (folder / "shared").string();
    for (int i = 0; i < nodes; ++i) join("node-" + std::to_string(i));
    job = submit(wanted);
    until([&] { return prepares.size() == static_cast<std::size_t>(nodes); });
    for (int i = 0; i < nodes; ++i) {
      engine->attempt_prepared(NodeId("node-" + std::to_string(i)), job, 1, std::nullopt);
    }
    started("node-0", job, 1);
    say("node-0", job, 1, wire::MasterReady{29500});
    for (int i = 0; i < nodes; ++i) {
      const std::string node = "node-" + std::to_string(i);
      started(node, job, 1);
      start_ranks(node, job, 1, i, 1);
    }
  }

  fs::path storage() const { return folder / "shared" / job.str(); }
  std::uint64_t report(int rank, const fs::path& path, int shards) {
    const std::string node = "node-" + std::to_string(rank);
    const nlohmann::json line = {{"type", "checkpoint"}, {"step", 5},
                                 {"ack", true},          {"shard", rank},
                                 {"shards", shards},     {"path", path.string()}};
    say(node, job, 1, wire::RankReport{rank, line});
    return seqs[{node, job.str(), 1}];
  }
  nlohmann::json answer_of(int rank, std::uint64_t seq) {
    const std::string node = "node-" + std::to_string(rank);
    until([&] { return answer(node, job, 1, seq).has_value(); });
    return *answer(node, job, 1, seq);
  }
  void deliver(const Fetch& fetch, const std::string& text) {
    write(fetch.folder / "model", text);
    const FileSum sum = sum_file(fetch.folder / "model");
    fetch.done(std::nullopt, {{"model", sum.size, sum.sha256}});
  }
};

}  // namespace

TEST_CASE("two nodes that name the same path each deliver their own bytes") {
  Shared world(2);
  // What the head has by that name is neither's.
  const fs::path same = world.folder / "tmp" / "ckpt";
  write(same / "model", "the head's own");
  const auto first = world.report(0, same, 2);
  const auto second = world.report(1, same, 2);
  world.until([&] { return world.fetches.size() == 2; });
  CHECK(read_file(same / "model") == "the head's own");
  for (const World::Fetch& fetch : std::vector<World::Fetch>(world.fetches)) {
    CHECK(fetch.ask.path == same);
    CHECK(fetch.ask.storage == world.storage());
    CHECK_FALSE(fetch.ask.keep);
    world.deliver(fetch, "of " + fetch.node.str());
  }
  const fs::path committed = world.answer_of(0, first).at("path").get<std::string>();
  CHECK(world.answer_of(1, second).at("path") == committed.string());
  CHECK(read_file(committed / "shard-00000-of-00002" / "model") == "of node-0");
  CHECK(read_file(committed / "shard-00001-of-00002" / "model") == "of node-1");
  CHECK(read_file(same / "model") == "the head's own");
}

TEST_CASE("what another machine's rank put in its place of the shared storage is taken there") {
  Shared world(1);
  const fs::path place = temporary_folder(world.storage(), 1, 5) / shard_name(0, 1);
  write(place / "model", "weights");
  const auto seq = world.report(0, place, 1);
  const nlohmann::json answer = world.answer_of(0, seq);
  CHECK(world.fetches.empty());
  REQUIRE(answer.contains("path"));
  CHECK(read_file(fs::path(answer.at("path").get<std::string>()) / shard_name(0, 1) / "model") ==
        "weights");
}

TEST_CASE("a link out of the storage is not followed") {
  Shared world(1);
  const fs::path outside = world.folder / "outside";
  write(outside / shard_name(0, 1) / "secret", "the head's own");
  const fs::path step = temporary_folder(world.storage(), 1, 5);
  const fs::path place = step / shard_name(0, 1);
  SUBCASE("instead of the step's folder") {
    fs::create_directories(step.parent_path());
    fs::create_directory_symlink(outside, step);
  }
  SUBCASE("instead of the shard") {
    fs::create_directories(step);
    fs::create_directory_symlink(outside / shard_name(0, 1), place);
  }
  const auto seq = world.report(0, place, 1);
  CHECK(world.answer_of(0, seq).contains("error"));
  CHECK(fs::exists(outside / shard_name(0, 1) / "secret"));
  CHECK_FALSE(fs::exists(outside / shard_name(0, 1) / "shard.json"));
}

TEST_CASE("what comes over the network does not go through a link either") {
  const TemporaryFolder folder;
  const fs::path storage = folder / "storage";
  clear_temporary(storage, 1);
  ShardReport report;
  report.job = JobId("job-aaaaaa");
  report.step = 5;
  fs::create_directory(folder / "outside");
  fs::create_directory_symlink(folder / "outside", temporary_folder(storage, 1, 5));
  write(incoming_folder(storage, report) / "model", "weights");
  const FileSum sum = sum_file(incoming_folder(storage, report) / "model");
  CHECK_THROWS_WITH_AS(take_incoming(storage, report, {{"model", sum.size, sum.sha256}}),
                       doctest::Contains("is not a folder"), Error);
  CHECK(fs::is_empty(folder / "outside"));
}
