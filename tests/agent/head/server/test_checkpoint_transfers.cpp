#include "agent/head/server/checkpoint_transfers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "agent/head/server/content_server.hpp"
#include "agent/head/server/exec_hub.hpp"
#include "agent/head/server/joins.hpp"
#include "agent/head/server/preparations.hpp"
#include "agent/head/setup.hpp"
#include "agent/link/content_exchange.hpp"
#include "agent/node/checkpoint_transfers.hpp"
#include "agent/node/config.hpp"
#include "launcher/core/error.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/wire/json.hpp"
#include "tests/support/patience.hpp"
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
  asio::io_context greeting{1};
  asio::io_context context{1};
  SystemClock clock;
  std::unique_ptr<head::ConfigFile> config_file;
  std::unique_ptr<head::NodeDoor> door;
  std::unique_ptr<head::NodeConnections> nodes;
  std::unique_ptr<head::Engine> engine;
  std::unique_ptr<head::Turns> turns;
  std::unique_ptr<head::CheckpointTransfers> transfers;
  std::unique_ptr<head::Joins> joins;
  std::unique_ptr<head::ContentServer> contents;
  std::unique_ptr<head::Preparations> preparations;
  std::unique_ptr<node::Relay> relay;
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
    config_file =
        std::make_unique<head::ConfigFile>(context, head_root, head::read_head_config(head_root));
    door = std::make_unique<head::NodeDoor>(context, greeting, *config_file);
    door->listen();
    nodes = std::make_unique<head::NodeConnections>(context, *config_file, *door);
    const nlohmann::json config = {
        {"cluster", cluster.str()},
        {"node", kFarNode.str()},
        {"address", "127.0.0.1"},
        {"head", {{"addresses", {"127.0.0.1"}}, {"port", door->port()}}}};
    write(node_root.config(), config.dump());
    head::EngineOptions options;
    options.cluster = cluster;
    options.root = head_root;
    head::Engine::Hooks hooks;
    hooks.post = [this](std::function<void()> work) { asio::post(context, std::move(work)); };
    hooks.timer = [](std::chrono::milliseconds, const std::function<void()>&) {};
    hooks.news = [](const head::JobNews&) {};
    engine = std::make_unique<head::Engine>(options, clock, *nodes, hooks);
    turns = std::make_unique<head::Turns>(
        context, [this](const NodeId& node) { return engine->address_of(node); });
    transfers = std::make_unique<head::CheckpointTransfers>(context, *engine, *nodes, *turns);
    nodes->use(*transfers);
    joins = std::make_unique<head::Joins>(context, context, *config_file, *engine, clock);
    nodes->use(*joins);
    contents = std::make_unique<head::ContentServer>(context, *engine, *turns, head_root.content());
    preparations = std::make_unique<head::Preparations>(
        *config_file, *contents, *engine, [](const NodeId&, const wire::HeadMessage&) {});
    nodes->use(*preparations);
    nodes->serve(*engine);
    relay = std::make_unique<node::Relay>(node_root, cluster);
    far = std::make_unique<node::CheckpointTransfers>(
        context.get_executor(), node_root, cluster, *relay,
        [this](const wire::AttemptPrepared& answer) { prepared.push_back(answer); });
  }
  ~BothEnds() {
    far.reset();
    transfers->stop();
    context.restart();
    context.poll();
  }

  asio::awaitable<wire::FrameStreamPtr> dial(std::string path) {
    const auto tls = wire::tls_context(node_root.identity(), wire::PeerName::Role::node);
    co_return co_await wire::dial_tls("127.0.0.1", static_cast<std::uint16_t>(door->port()), tls,
                                      wire::PeerName::Role::head, ClusterId("lab-abcdef"), path,
                                      dtrain::testing::kPatience);
  }
  asio::awaitable<void> join_control(std::vector<std::string> features) {
    const wire::FrameStreamPtr control = co_await dial("/v1/node/control");
    streams.push_back(control);
    wire::Hello hello;
    hello.cluster = ClusterId("lab-abcdef");
    hello.node = kFarNode;
    hello.features = std::move(features);
    hello.machine = "another";
    const wire::NodeMessage first = hello;
    control->send_text(wire::dump(wire::to_json(first)));
    co_await control->read();
  }
  asio::awaitable<void> join(std::vector<std::string> features) {
    co_await join_control(std::move(features));
    const wire::FrameStreamPtr bulk = co_await dial("/v1/node/bulk");
    streams.push_back(bulk);
    while (true) {
      const wire::Frame frame = co_await bulk->read();
      const auto message = wire::bulk_message_from_json(wire::parse_json(frame.bytes, "a message"));
      asked.push_back(std::get<wire::ShardAsk>(message));
    }
  }
  // The test is the node: offers one file, and sends these bytes of it, from where the head has
  // them; or only the first piece. Until the head hangs up, or has the shard.
  const std::string weights = std::string(300000, 'w');
  std::string sum_of_weights() const {
    Sha256 sum;
    sum.add(weights);
    return sum.hex();
  }
  static bool holds_bytes(const std::filesystem::path& top) {
    std::error_code absent;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(top, absent)) {
      if (entry.is_regular_file(absent) && entry.file_size(absent) > 0) return true;
    }
    return false;
  }
  std::vector<std::uint64_t> offsets;  // from where
  int over = 0;
  asio::awaitable<void> offer(std::string bytes, bool all) {
    const std::string sum = sum_of_weights();
    while (true) {
      const wire::FrameStreamPtr stream = co_await dial("/v1/node/checkpoint");
      const std::shared_ptr<void> hang_up(nullptr, [stream](void*) { stream->abort(); });
      link::say(stream,
                wire::ShardOffer{asked.at(0).transfer, {{"model", weights.size(), sum}}, {}});
      wire::ContentMessage message;
      try {
        message = co_await link::hear(stream);
      } catch (const link::Refusal& refusal) {
        if (refusal.code() != ErrorCode::timeout) throw;
        continue;  // the last connection is not over there yet
      }
      const auto& blob = std::get<wire::ContentWant>(message).blobs.at(0);
      offsets.push_back(blob.offset);
      BlobSender sender({{sum, {}, blob.offset, weights.size(), bytes}}, false);
      link::say(stream, wire::ContentStream{weights.size() - blob.offset});
      std::string piece = sender.next();
      do {
        stream->send({false, piece});
        piece = sender.next();
      } while (all && !piece.empty());
      if (all) link::say(stream, wire::ContentEnd{});
      co_await stream->queue_below(1);
      if (!all) {  // what the head has not read is lost with the connection
        asio::steady_timer pause(context);
        while (!holds_bytes(folder / "storage")) {
          pause.expires_after(1ms);
          co_await pause.async_wait(asio::use_awaitable);
        }
        co_return;
      }
      co_await link::hear(stream);
      co_return;
    }
  }
  void offers(const std::string& bytes, bool all) {
    asio::co_spawn(context, offer(bytes, all), [this](const std::exception_ptr&) { ++over; });
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
    while (!ready()) REQUIRE(context.run_one_for(dtrain::testing::kPatience) == 1);
  }
  // For what another thread does with files.
  template <typename Ready>
  void until_on_disk(Ready ready) {
    const auto end = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
    while (!ready()) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      context.run_for(1ms);
    }
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
  ends.until_on_disk([&] { return !fs::exists(ends.folder / "shard"); });
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

TEST_CASE("a shard goes on where it was cut off, and damage of one connection is not the end") {
  BothEnds ends;
  ends.come();
  const std::string transfer = ends.fetch();
  ends.until([&] { return !ends.asked.empty(); });
  ends.offers(ends.weights, false);
  ends.until([&] { return ends.over == 1; });
  ends.offers(std::string(ends.weights.size(), 'x'), true);
  ends.until([&] { return ends.over == 2; });
  CHECK_FALSE(ends.done);
  ends.offers(ends.weights, true);
  ends.until([&] { return ends.done.has_value(); });
  CHECK(ends.why() == "nothing");
  REQUIRE(ends.offsets.size() == 3);
  CHECK(ends.offsets[0] == 0);
  CHECK(ends.offsets[1] > 0);
  CHECK(ends.offsets[2] == 0);
  CHECK(read_file(ends.folder / "storage/incoming/model") == ends.weights);
  ends.transfers->taken(kFarNode, transfer, std::nullopt);
  ends.until([&] { return ends.over == 3; });
}

TEST_CASE("damage that comes again is the answer") {
  BothEnds ends;
  ends.come();
  ends.fetch();
  ends.until([&] { return !ends.asked.empty(); });
  for (int i = 1; i <= 2; ++i) {
    CHECK_FALSE(ends.done);
    ends.offers(std::string(ends.weights.size(), 'x'), true);
    ends.until([&] { return ends.over == i; });
  }
  ends.until([&] { return ends.done.has_value(); });
  CHECK(ends.why().find("arrived damaged") != std::string::npos);
}

TEST_CASE("a shard that is given up while it comes is hung up on, and what came is removed") {
  BothEnds ends;
  const fs::path part = ends.folder / "storage/incoming.part";
  ends.come();
  ends.fetch();
  ends.until([&] { return !ends.asked.empty(); });
  // Neither the end nor a break: it has more to send.
  wire::FrameStreamPtr stream;
  const auto send = [&]() -> asio::awaitable<void> {
    const std::string sum = ends.sum_of_weights();
    stream = co_await ends.dial("/v1/node/checkpoint");
    link::say(stream, wire::ShardOffer{ends.asked[0].transfer, {{"model", 300000, sum}}, {}});
    co_await link::hear(stream);
    BlobSender sender({{sum, {}, 0, ends.weights.size(), ends.weights}}, false);
    link::say(stream, wire::ContentStream{ends.weights.size()});
    stream->send({false, sender.next()});
    co_await link::hear(stream);
  };
  std::string why;
  asio::co_spawn(ends.context, send, [&](const std::exception_ptr& failed) {
    try {
      std::rethrow_exception(failed);
    } catch (const std::exception& error) {
      why = error.what();
    }
  });
  ends.until_on_disk([&] { return fs::exists(part / "incoming"); });
  ends.transfers->give_up(kFarNode);
  ends.until([&] { return !why.empty(); });
  ends.until_on_disk([&] { return !fs::exists(part); });
  CHECK(why.find("the connection ended") != std::string::npos);
  CHECK(ends.why() == "node-0 was lost");
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

namespace {

// A client of the head's API that says nothing and hears what it is told.
class SilentClient : public wire::FrameStream {
 public:
  explicit SilentClient(asio::io_context& context) : silence_(context, 1h) {}

  asio::awaitable<wire::Frame> read() override {
    boost::system::error_code stopped;
    co_await silence_.async_wait(asio::redirect_error(asio::use_awaitable, stopped));
    throw Error(ErrorCode::unreachable, "the client is gone");
  }
  void send(wire::Frame frame) override { heard.push_back(std::move(frame)); }
  asio::awaitable<void> queue_below(std::size_t) override { co_return; }
  void close() override { open_ = false; }
  void abort() override {
    open_ = false;
    silence_.cancel();
  }
  bool is_open() const override { return open_; }
  std::string local_address() const override { return ""; }
  bool peer_is_here() const override { return true; }

  std::vector<wire::Frame> heard;

 private:
  asio::steady_timer silence_;
  bool open_ = true;
};

}  // namespace

TEST_CASE("a port of a node that has just joined is forwarded once its bulk connection is open") {
  BothEnds ends;
  head::ExecHub hub(ends.context, *ends.nodes);
  asio::co_spawn(ends.context, ends.join_control(wire::kNodeFeatures),
                 [](const std::exception_ptr&) {});
  ends.until([&] { return ends.nodes->connected(kFarNode) && !ends.streams.empty(); });
  CHECK_FALSE(ends.nodes->takes_commands(kFarNode));
  const auto named = std::make_shared<SilentClient>(ends.context);
  const auto of_head = std::make_shared<SilentClient>(ends.context);
  const auto wrong = std::make_shared<SilentClient>(ends.context);
  int over = 0;
  const auto ended = [&](const std::exception_ptr&) { ++over; };
  asio::co_spawn(ends.context, hub.forward(named, kFarNode, 6006), ended);
  asio::co_spawn(ends.context, hub.forward(of_head, NodeId(""), 6007), ended);
  asio::co_spawn(ends.context, hub.forward(wrong, NodeId("node-7"), 6008), ended);
  std::vector<int> ports;
  const auto listen = [](BothEnds& on, std::vector<int>& told) -> asio::awaitable<void> {
    const wire::FrameStreamPtr bulk = co_await on.dial("/v1/node/bulk");
    on.streams.push_back(bulk);
    while (true) {
      const wire::Frame frame = co_await bulk->read();
      const auto message = wire::bulk_message_from_json(wire::parse_json(frame.bytes, "a message"));
      told.push_back(std::get<wire::StartForward>(message).port);
    }
  };
  asio::co_spawn(ends.context, listen(ends, ports), [](const std::exception_ptr&) {});
  ends.until([&] { return ports.size() == 2 && over == 1; });
  std::sort(ports.begin(), ports.end());
  CHECK(ports == std::vector<int>{6006, 6007});
  CHECK(named->heard.empty());
  CHECK(of_head->heard.empty());
  REQUIRE(wrong->heard.size() == 1);
  const nlohmann::json end = nlohmann::json::parse(wrong->heard[0].bytes);
  CHECK(end["type"] == "end");
  CHECK(end["error"]["message"] == "node node-7 is not connected");
  CHECK_FALSE(wrong->is_open());
  named->abort();
  of_head->abort();
  ends.until([&] { return over == 3; });
}

// Of NodeConnections alone.
TEST_CASE("a node that has just joined is asked once its bulk connection is open") {
  BothEnds ends;
  int gone = 0;
  head::NodeConnections::BulkHooks hooks;
  hooks.gone = [&](const NodeId&) { ++gone; };
  ends.nodes->on_bulk(std::move(hooks));
  wire::ShardAsk ask;
  ask.job = JobId("job-aaaaaa");
  ask.path = "/shard";
  ask.transfer = "early";
  ends.nodes->ask(kFarNode, ask);  // it is not there: nobody hears of it
  SUBCASE("it opens it") {
    asio::co_spawn(ends.context, ends.join(wire::kNodeFeatures), [](const std::exception_ptr&) {});
    ends.until([&] { return ends.nodes->connected(kFarNode); });
    CHECK_FALSE(ends.nodes->takes_commands(kFarNode));
    ask.transfer = "soon";
    ends.nodes->ask(kFarNode, ask);
    ends.until([&] { return ends.nodes->takes_commands(kFarNode); });
    ask.transfer = "now";
    ends.nodes->ask(kFarNode, ask);
    ends.until([&] { return ends.asked.size() == 2; });
    CHECK(ends.asked[0].transfer == "soon");
    CHECK(ends.asked[1].transfer == "now");
    CHECK(gone == 0);
  }
  SUBCASE("it leaves before that") {
    asio::co_spawn(ends.context, ends.join_control(wire::kNodeFeatures),
                   [](const std::exception_ptr&) {});
    ends.until([&] { return ends.nodes->connected(kFarNode); });
    ends.nodes->ask(kFarNode, ask);
    ends.until([&] { return !ends.streams.empty(); });
    ends.streams[0]->abort();
    ends.until([&] { return gone == 1; });
    CHECK_FALSE(ends.nodes->connected(kFarNode));
  }
}
