#include "agent/node/checkpoint_transfers.hpp"

#include <doctest/doctest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <vector>

#include "launcher/core/error.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;

namespace {

// A node's side; what it sends is gathered here.
struct TransferWorld {
  TemporaryFolder folder;
  boost::asio::io_context context;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{
      context.get_executor()};
  std::vector<wire::BulkMessage> sent;
  std::vector<wire::AttemptPrepared> prepared;
  node::CheckpointTransfers transfers{
      context.get_executor(), paths::NodeRoot{folder.path()},
      [this](const wire::BulkMessage& message, std::string) { sent.push_back(message); },
      [this](const wire::AttemptPrepared& answer) { prepared.push_back(answer); }};

  wire::PrepareAttempt request(int attempt, std::optional<int> checkpoint = {}) const {
    wire::PrepareAttempt request;
    request.job = JobId("job-1");
    request.attempt = attempt;
    request.checkpoint = checkpoint;
    return request;
  }
  template <typename Ready>
  void run_until(Ready ready) {
    while (!ready()) {
      REQUIRE(context.run_one_for(std::chrono::seconds(20)) == 1);
    }
  }
};

}  // namespace

TEST_CASE("an attempt without a checkpoint is ready at once") {
  TransferWorld world;
  world.transfers.prepare(world.request(1));
  world.run_until([&] { return !world.prepared.empty(); });
  CHECK(world.prepared[0].attempt == 1);
  CHECK_FALSE(world.prepared[0].error);
  CHECK(world.sent.empty());
}

TEST_CASE("a checkpoint is asked for once, however often the head asks") {
  TransferWorld world;
  world.transfers.connected(true);
  world.transfers.prepare(world.request(1, 3));
  world.transfers.prepare(world.request(1, 3));
  world.run_until([&] { return !world.sent.empty(); });
  // Were there a second, it would have been posted before what follows here.
  world.transfers.prepare({JobId("other"), 1, {}, {}, {}});
  world.run_until([&] { return !world.prepared.empty(); });
  REQUIRE(world.sent.size() == 1);
  CHECK(std::get<wire::CheckpointAsk>(world.sent[0]).number == 3);
}

TEST_CASE("a newer attempt's checkpoint takes the place of what an older one waited for") {
  TransferWorld world;
  world.transfers.connected(true);
  world.transfers.prepare(world.request(1, 3));
  world.run_until([&] { return !world.sent.empty(); });
  const auto first = std::get<wire::CheckpointAsk>(world.sent[0]);
  world.transfers.prepare(world.request(2, 3));
  world.run_until([&] { return world.sent.size() == 3; });
  const auto& end = std::get<wire::TreeEnd>(world.sent[1]);
  CHECK(end.transfer == first.transfer);
  REQUIRE(end.error);
  const auto second = std::get<wire::CheckpointAsk>(world.sent[2]);
  CHECK(second.transfer != first.transfer);
  // What still comes for the first one is passed over.
  world.transfers.message(
      wire::TreeFiles{first.transfer, {{"manifest.json", 1, std::string(64, 'a')}}}, {});
  CHECK(world.sent.size() == 3);
  CHECK(world.prepared.empty());

  world.transfers.forget(JobId("job-1"));
  CHECK(std::get<wire::TreeEnd>(world.sent[3]).transfer == second.transfer);
}

TEST_CASE("a shard that lies in the shared storage is not the node's to remove") {
  const TemporaryFolder folder;
  const fs::path storage = folder / "storage";
  wire::ShardAsk request;
  request.storage = (folder / "alias").string();
  fs::create_directory_symlink(storage, folder / "alias");
  const auto look = [&](const fs::path& path) {
    make_folders(path);
    write_file_atomic(path / "model", "weights");
    request.path = path.string();
    return node::look_at_shard(request);
  };
  CHECK(look(storage / "checkpoints/.tmp/attempt-1-step-5/shard-00000-of-00001").keep);
  CHECK_FALSE(look(storage / "mine").keep);
  CHECK_FALSE(look(folder / "elsewhere").keep);
  CHECK_THROWS_WITH_AS(look(storage / "checkpoints/checkpoint_000001"),
                       doctest::Contains("committed checkpoints"), Error);
  request.keep = true;
  CHECK(look(folder / "elsewhere").keep);
}
