#include "agent/head/server/checkpoint_transfers.hpp"

#include <doctest/doctest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>

#include "agent/head/setup.hpp"
#include "agent/node/checkpoint_transfers.hpp"
#include "agent/node/config.hpp"
#include "launcher/core/error.hpp"
#include "launcher/wire/json.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace std::chrono_literals;
using dtrain::testing::TemporaryFolder;
using dtrain::testing::write;

namespace asio = boost::asio;

namespace {

const NodeId kFarNode("node-0");

// A head and a node on loopback; the node's main connections are the test's own.
struct BothEnds {
  TemporaryFolder folder;
  paths::HeadRoot head_root{folder / "head"};
  paths::NodeRoot node_root{folder / "node"};
  asio::io_context context{1};
  SystemClock clock;
  std::unique_ptr<head::NodeConnections> nodes;
  std::unique_ptr<head::Engine> engine;
  std::unique_ptr<head::CheckpointTransfers> transfers;
  std::unique_ptr<node::CheckpointTransfers> far;
  std::vector<wire::AttemptPrepared> prepared;
  std::vector<wire::FrameStreamPtr> streams;
  std::vector<wire::ShardAsk> asked;
  std::optional<std::optional<Error>> done;
  std::vector<FileEntry> files;

  BothEnds() {
    const ClusterId cluster("lab-abcdef");
    head::init_head(head_root, {cluster, "lab", "local", 1, 0, 0});
    const std::string request = node::init_node(node_root, cluster, kFarNode);
    node::install_identity(node_root, head::sign_node(head_root, kFarNode, request));
    nodes = std::make_unique<head::NodeConnections>(context, head_root,
                                                    head::read_head_config(head_root));
    nodes->listen();
    const nlohmann::json config = {
        {"cluster", cluster.str()},
        {"node", kFarNode.str()},
        {"address", "127.0.0.1"},
        {"head", {{"addresses", {"127.0.0.1"}}, {"port", nodes->port()}}}};
    write(node_root.config(), config.dump());
    head::EngineOptions options;
    options.cluster = cluster;
    options.root = head_root;
    head::Engine::Hooks hooks;
    hooks.post = [this](std::function<void()> work) { asio::post(context, std::move(work)); };
    hooks.timer = [](std::chrono::milliseconds, const std::function<void()>&) {};
    hooks.news = [](const head::JobNews&) {};
    engine = std::make_unique<head::Engine>(options, clock, *nodes, hooks);
    transfers = std::make_unique<head::CheckpointTransfers>(context, *engine, *nodes);
    nodes->use(*transfers);
    nodes->serve(*engine);
    far = std::make_unique<node::CheckpointTransfers>(
        context.get_executor(), node_root,
        [this](const wire::AttemptPrepared& answer) { prepared.push_back(answer); });
  }
  ~BothEnds() {
    far.reset();
    transfers->stop();
    context.restart();
    context.poll();
  }

  asio::awaitable<void> join(std::vector<std::string> features) {
    const auto tls = wire::tls_context(node_root.identity(), wire::PeerName::Role::node);
    const ClusterId cluster("lab-abcdef");
    const auto dial = [&](const char* path) {
      return wire::dial_tls("127.0.0.1", static_cast<std::uint16_t>(nodes->port()), tls,
                            wire::PeerName::Role::head, cluster, path, 20s);
    };
    const wire::FrameStreamPtr control = co_await dial("/v1/node/control");
    streams.push_back(control);
    wire::Hello hello;
    hello.cluster = cluster;
    hello.node = kFarNode;
    hello.features = std::move(features);
    hello.machine = "another";
    const wire::NodeMessage first = hello;
    control->send_text(wire::dump(wire::to_json(first)));
    co_await control->read();
    const wire::FrameStreamPtr bulk = co_await dial("/v1/node/bulk");
    streams.push_back(bulk);
    while (true) {
      const wire::Frame frame = co_await bulk->read();
      const auto message = wire::bulk_message_from_json(wire::parse_json(frame.bytes, "a message"));
      asked.push_back(std::get<wire::ShardAsk>(message));
    }
  }
  void come(const std::vector<std::string>& features = wire::kNodeFeatures) {
    asio::co_spawn(context, join(features), [](const std::exception_ptr&) {});
    until([&] { return nodes->takes_commands(kFarNode); });
  }
  std::string fetch() {
    wire::ShardAsk ask;
    ask.job = JobId("job-aaaaaa");
    ask.path = (folder / "shard").string();
    write(folder / "shard/model", "weights");
    write(folder / "shard/deep/copy", "weights");
    return transfers->fetch(kFarNode, ask, folder / "storage/incoming",
                            [this](std::optional<Error> error, std::vector<FileEntry> listed) {
                              done = std::move(error);
                              files = std::move(listed);
                            });
  }
  template <typename Ready>
  void until(Ready ready) {
    while (!ready()) REQUIRE(context.run_one_for(20s) == 1);
  }
  std::string why() const { return done && *done ? (*done)->what() : "nothing"; }
};

}  // namespace

TEST_CASE("a shard comes whole, and is the node's own until it is safe here") {
  BothEnds ends;
  const std::string transfer = ends.fetch();  // before the node is there
  ends.come();
  ends.until([&] { return !ends.asked.empty(); });
  ends.far->send(ends.asked[0]);
  ends.until([&] { return ends.done.has_value(); });
  CHECK(ends.why() == "nothing");
  CHECK(ends.files.size() == 2);
  CHECK(read_file(ends.folder / "storage/incoming/model") == "weights");
  CHECK(read_file(ends.folder / "storage/incoming/deep/copy") == "weights");
  CHECK_FALSE(fs::exists(ends.folder / "storage/incoming.part"));
  CHECK(fs::exists(ends.folder / "shard/model"));
  ends.transfers->taken(kFarNode, transfer, std::nullopt);
  for (int i = 0; i < 20000 && fs::exists(ends.folder / "shard"); ++i) ends.context.run_for(1ms);
  CHECK_FALSE(fs::exists(ends.folder / "shard"));
}

TEST_CASE("a shard that cannot be had is told with the node's own words, and nothing stays") {
  BothEnds ends;
  ends.come();
  ends.fetch();
  fs::remove_all(ends.folder / "shard");
  ends.until([&] { return !ends.asked.empty(); });
  ends.far->send(ends.asked[0]);
  ends.until([&] { return ends.done.has_value(); });
  CHECK(ends.why().find("cannot look at") != std::string::npos);
}

TEST_CASE("an agent that is too old for shards is told so, and what to do") {
  BothEnds ends;
  std::vector<std::string> features = wire::kNodeFeatures;
  std::erase(features, "shards");
  ends.come(features);
  ends.fetch();
  ends.until([&] { return ends.done.has_value(); });
  CHECK(ends.why().find("too old to send a checkpoint") != std::string::npos);
  CHECK((*ends.done)->hint().find("dtrain up") != std::string::npos);
  CHECK(ends.asked.empty());
}

TEST_CASE("a shard of a lost node is not awaited, and one that nobody awaits is refused") {
  BothEnds ends;
  ends.come();
  ends.fetch();
  ends.until([&] { return !ends.asked.empty(); });
  ends.transfers->give_up(kFarNode);
  ends.until([&] { return ends.done.has_value(); });
  CHECK(ends.why() == "node-0 was lost");
  ends.done.reset();
  ends.far->send(ends.asked[0]);
  // The node goes on to the next one.
  ends.fetch();
  ends.until([&] { return ends.asked.size() == 2; });
  ends.far->send(ends.asked[1]);
  ends.until([&] { return ends.done.has_value(); });
  CHECK(ends.why() == "nothing");
  CHECK(fs::exists(ends.folder / "shard/model"));
}

TEST_CASE("a checkpoint goes to no node but those of the job's attempt") {
  BothEnds ends;
  ends.come();
  ends.far->prepare({JobId("job-aaaaaa"), 1, 0, {}, {}});
  ends.until([&] { return !ends.prepared.empty(); });
  REQUIRE(ends.prepared[0].error);
  CHECK(ends.prepared[0].error->message() == "the head has no such checkpoint for node-0");
}
