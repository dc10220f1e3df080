#include "agent/node/checkpoint_transfers.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>
#include <nlohmann/json.hpp>
#include <vector>

#include "agent/link/content_exchange.hpp"
#include "launcher/core/error.hpp"
#include "launcher/files/sha256.hpp"
#include "tests/support/identities.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace std::chrono_literals;
using dtrain::testing::TemporaryFolder;
using dtrain::testing::write;

namespace asio = boost::asio;

namespace {

const ClusterId& kFetchLab = dtrain::testing::kLab;
const JobId kFetchJob{"job-1"};

// A node's side, and a head on loopback that does with each connection what the test says.
struct TransferWorld {
  using Talk = std::function<asio::awaitable<void>(wire::FrameStreamPtr)>;

  TemporaryFolder folder;
  paths::NodeRoot root{folder / "node"};
  asio::io_context context;
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  asio::ip::tcp::acceptor acceptor{context, {asio::ip::address_v4::loopback(), 0}};
  std::deque<Talk> talks;                     // one for each connection, kept
  std::size_t over = 0;                       // of them
  std::vector<wire::ContentMessage> heard;    // first messages of connections
  std::vector<wire::FrameStreamPtr> streams;  // kept open
  std::vector<wire::AttemptPrepared> prepared;
  node::Relay relay{root, kFetchLab};
  node::CheckpointTransfers transfers{
      context.get_executor(), root, kFetchLab, relay,
      [this](const wire::AttemptPrepared& answer) { prepared.push_back(answer); }};

  TransferWorld() {
    const dtrain::testing::Cluster cluster(kFetchLab);
    cluster.save(root.identity(), wire::PeerName::Role::node, "node-0");
    cluster.save(folder / "head", wire::PeerName::Role::head, "node-0");
    const nlohmann::json config = {
        {"cluster", kFetchLab.str()},
        {"node", "node-0"},
        {"address", "127.0.0.1"},
        {"head", {{"addresses", {"127.0.0.1"}}, {"port", acceptor.local_endpoint().port()}}}};
    write(root.config(), config.dump());
    asio::co_spawn(context, accept(), asio::detached);
  }

  asio::awaitable<void> accept() {
    while (true) {
      asio::ip::tcp::socket socket = co_await acceptor.async_accept(asio::use_awaitable);
      const auto tls = wire::tls_context(folder / "head", wire::PeerName::Role::head);
      wire::AcceptedPeer peer =
          co_await wire::accept_tls(std::move(socket), tls, dtrain::testing::kPatience);
      const wire::FrameStreamPtr stream = peer.stream;
      streams.push_back(stream);
      heard.push_back(co_await link::hear(stream));
      asio::co_spawn(context, talks.at(heard.size() - 1)(stream),
                     [this](const std::exception_ptr&) { ++over; });
    }
  }

  wire::PrepareAttempt request(int attempt, std::optional<int> checkpoint = {}) const {
    wire::PrepareAttempt request;
    request.job = kFetchJob;
    request.attempt = attempt;
    request.checkpoint = checkpoint;
    return request;
  }
  template <typename Ready>
  void run_until(Ready ready) {
    while (!ready()) {
      REQUIRE(context.run_one_for(dtrain::testing::kPatience) == 1);
    }
  }

  // ---- A checkpoint of two files, which the head has.
  const std::string weights = std::string(3000000, 'w') + "end";
  fs::path place() const { return root.checkpoint(kFetchJob, 3); }
  std::vector<FileEntry> checkpoint() const {
    write(folder / "stored/shard/weights", weights);
    write(folder / "stored/shard/same", weights);
    const auto entry = [this](const std::string& path) {
      const FileSum sum = sum_file(folder / "stored" / path);
      return FileEntry{path, sum.size, sum.sha256};
    };
    std::vector<FileEntry> files{entry("shard/weights"), entry("shard/same")};
    const nlohmann::json list = {{"files", to_json(files)}};
    write(folder / "stored/manifest.json", list.dump());
    files.push_back(entry("manifest.json"));
    return files;
  }
  std::string manifest() const { return read_file(folder / "stored/manifest.json"); }
  asio::awaitable<void> give(wire::FrameStreamPtr stream) {
    const std::vector<FileEntry> files = checkpoint();
    link::say(stream, wire::ContentFiles{files});
    co_await link::give_all(stream, link::files_of(folder / "stored", files), false);
  }
  Talk gives() {
    return [this](wire::FrameStreamPtr stream) { return give(std::move(stream)); };
  }
  static asio::awaitable<void> nothing(wire::FrameStreamPtr) { co_return; }

  // ---- A shard of one file, which the node has.
  wire::ShardAsk shard(const std::string& transfer, bool keep = false) const {
    write(folder / "shard/model", weights);
    return {transfer, kFetchJob, (folder / "shard").string(), 0, 1, 5, keep, {}, {}};
  }
  asio::awaitable<void> take(wire::FrameStreamPtr stream) {
    const wire::ShardOffer offer = std::get<wire::ShardOffer>(heard.back());
    co_await link::bring_folder(stream, folder / "taken", offer.files, [](std::uint64_t) {});
    link::say(stream, wire::ContentEnd{});
    co_await link::hear(stream);  // until it hangs up
  }
  Talk takes() {
    return [this](wire::FrameStreamPtr stream) { return take(std::move(stream)); };
  }
};

}  // namespace

TEST_CASE("an attempt without a checkpoint is ready at once") {
  TransferWorld world;
  world.transfers.prepare(world.request(1));
  world.run_until([&] { return !world.prepared.empty(); });
  CHECK(world.prepared[0].attempt == 1);
  CHECK_FALSE(world.prepared[0].error);
  CHECK(world.heard.empty());
}

TEST_CASE("a checkpoint is brought once, however often the head asks") {
  TransferWorld world;
  write(world.root.checkpoint(kFetchJob, 2) / "manifest.json", "of an older one");
  world.talks = {world.gives()};
  world.transfers.prepare(world.request(1, 3));
  world.transfers.prepare(world.request(1, 3));
  world.run_until([&] { return !world.prepared.empty(); });
  CHECK_FALSE(world.prepared[0].error);
  CHECK(std::get<wire::CheckpointAsk>(world.heard.at(0)).number == 3);
  CHECK(read_file(world.place() / "shard/weights") == world.weights);
  CHECK(read_file(world.place() / "shard/same") == world.weights);
  CHECK(read_file(world.place() / "manifest.json") == world.manifest());
  CHECK(std::distance(fs::directory_iterator(world.place().parent_path()), {}) == 1);
  // What is there is not brought again.
  world.transfers.prepare(world.request(2, 3));
  world.run_until([&] { return world.prepared.size() == 2; });
  CHECK(world.heard.size() == 1);
}

TEST_CASE("a checkpoint that is not whole any more is brought again") {
  TransferWorld world;
  world.talks = {world.gives(), world.gives()};
  world.transfers.prepare(world.request(1, 3));
  world.run_until([&] { return world.prepared.size() == 1; });
  // What a machine that lost its power may have kept.
  const fs::path manifest = world.place() / "manifest.json";
  SUBCASE("an empty list") {
    fs::resize_file(manifest, 0);
  }
  SUBCASE("a list that ends in the middle") {
    fs::resize_file(manifest, world.manifest().size() / 2);
  }
  SUBCASE("an empty file") {
    fs::resize_file(world.place() / "shard/same", 0);
  }
  SUBCASE("a file less") {
    fs::remove(world.place() / "shard/weights");
  }
  world.transfers.prepare(world.request(2, 3));
  world.run_until([&] { return world.prepared.size() == 2; });
  CHECK_FALSE(world.prepared[1].error);
  CHECK(world.heard.size() == 2);
  CHECK(read_file(world.place() / "shard/weights") == world.weights);
  CHECK(read_file(world.place() / "shard/same") == world.weights);
  CHECK(read_file(manifest) == world.manifest());
}

TEST_CASE("a checkpoint whose connection is cut goes on where it was") {
  TransferWorld world;
  std::uint64_t offset = 0;
  const auto cut = [&](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    const std::vector<FileEntry> files = world.checkpoint();
    link::say(stream, wire::ContentFiles{files});
    const wire::ContentMessage want = co_await link::hear(stream);
    CHECK(std::get<wire::ContentWant>(want).blobs.size() == 2);
    BlobSender sender({link::files_of(world.folder / "stored", files)(files[0].sha256)}, false);
    link::say(stream, wire::ContentStream{files[0].size});
    stream->send({false, sender.next()});
    stream->close();
  };
  const auto rest = [&](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    const std::vector<FileEntry> files = world.checkpoint();
    link::say(stream, wire::ContentFiles{files});
    const wire::ContentMessage message = co_await link::hear(stream);
    const auto& want = std::get<wire::ContentWant>(message);
    for (const auto& blob : want.blobs) offset += blob.offset;
    const link::Source source = link::files_of(world.folder / "stored", files);
    co_await link::give(stream, want, source, false);
  };
  world.talks = {cut, rest};
  world.transfers.prepare(world.request(1, 3));
  world.run_until([&] { return !world.prepared.empty(); });
  CHECK_FALSE(world.prepared[0].error);
  CHECK(offset > 0);
  CHECK(read_file(world.place() / "shard/weights") == world.weights);
}

TEST_CASE("what the head refuses, or what is not what was listed, is the answer") {
  TransferWorld world;
  std::string why = "it has no such checkpoint";
  const auto refuse = [&](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    link::say(stream, wire::ContentRefused{Error(ErrorCode::not_found, why)});
    co_return;
  };
  const auto other_bytes = [&](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    const std::vector<FileEntry> files{{"model", 5, std::string(64, 'a')}};
    link::say(stream, wire::ContentFiles{files});
    const wire::ContentMessage message = co_await link::hear(stream);
    const auto& want = std::get<wire::ContentWant>(message);
    const link::Source source = [](const std::string& sha256) {
      return BlobSender::Source{sha256, {}, 0, 5, "bytes"};
    };
    co_await link::give(stream, want, source, false);
    co_await link::hear(stream);
  };
  const auto too_many = [&](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    const std::string sum(64, 'a');
    link::say(stream,
              wire::ContentFiles{{{"model", 5, sum}, {"copy", std::uint64_t{1} << 60, sum}}});
    co_await link::hear(stream);
  };
  SUBCASE("refused") {
    world.talks = {refuse};
  }
  SUBCASE("no room for the copies") {
    why = "no room";
    world.talks = {too_many};
  }
  SUBCASE("other bytes") {
    why = "its sum is another";
    world.talks = {other_bytes, other_bytes, other_bytes};
  }
  world.transfers.prepare(world.request(1, 3));
  world.run_until([&] { return !world.prepared.empty(); });
  REQUIRE(world.prepared[0].error);
  CHECK(std::string(world.prepared[0].error->what()).find(why) != std::string::npos);
  CHECK_FALSE(fs::exists(world.place()));
  CHECK(world.heard.size() == world.talks.size());
}

TEST_CASE("a newer attempt's checkpoint takes the place of what an older one waited for") {
  TransferWorld world;
  world.talks = {TransferWorld::nothing, world.gives()};
  world.transfers.prepare(world.request(1, 3));
  world.run_until([&] { return world.heard.size() == 1; });
  world.transfers.prepare(world.request(2, 3));
  world.run_until([&] { return !world.prepared.empty(); });
  CHECK(world.prepared[0].attempt == 2);
  CHECK_FALSE(world.prepared[0].error);
  // What still comes for the first one is passed over.
  link::say(world.streams[0], wire::ContentFiles{world.checkpoint()});
  world.talks.push_back(TransferWorld::nothing);
  world.transfers.prepare({JobId("other"), 1, 7, {}, {}});
  world.run_until([&] { return world.heard.size() == 3; });
  CHECK(world.prepared.size() == 1);
  CHECK(read_file(world.place() / "manifest.json") == world.manifest());

  world.transfers.forget(JobId("other"));
  world.transfers.prepare(world.request(3));
  world.run_until([&] { return world.prepared.size() == 2; });
  CHECK(world.prepared[1].attempt == 3);
}

TEST_CASE("a shard goes to the head, and then is removed here unless it is to be kept") {
  TransferWorld world;
  bool keep = false;
  SUBCASE("moved") {}
  SUBCASE("kept") {
    keep = true;
  }
  // Once cut off before a byte has come.
  const auto cut = [](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    stream->abort();
    co_return;
  };
  world.talks = {cut, world.takes(), world.takes()};
  const wire::ShardAsk ask = world.shard("00ff", keep);
  world.transfers.send(ask);
  world.transfers.send(ask);  // a repeat
  world.run_until([&] { return world.over == 2; });
  CHECK(read_file(world.folder / "taken/model") == world.weights);
  world.transfers.send(
      {"0100", kFetchJob, (world.folder / "stored").string(), 0, 1, 5, true, {}, {}});
  world.run_until([&] { return world.heard.size() == 3; });  // the first one is over here too
  CHECK(fs::exists(world.folder / "shard") == keep);
}

TEST_CASE("only the head's refusal ends the offer of a shard, or that its job is forgotten") {
  TransferWorld world;
  const auto odd = [](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    link::say(stream, wire::ContentStream{1});
    co_return;
  };
  const auto refuse = [](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    link::say(stream, wire::ContentRefused{Error(ErrorCode::not_found, "not awaited")});
    co_return;
  };
  const auto heard = [&](std::size_t at) {
    world.run_until([&] { return world.heard.size() > at; });
    return std::get<wire::ShardOffer>(world.heard[at]).transfer;
  };
  world.talks = {odd, refuse, TransferWorld::nothing, TransferWorld::nothing};
  world.transfers.send(world.shard("00ff"));
  CHECK(heard(0) == "00ff");
  CHECK(heard(1) == "00ff");
  wire::ShardAsk other = world.shard("0100");
  other.job = JobId("other");
  world.transfers.send(other);
  CHECK(heard(2) == "0100");
  world.transfers.forget(other.job);
  world.streams[2]->abort();
  // The first two are over.
  other = world.shard("0200");
  other.job = JobId("third");
  world.transfers.send(other);
  CHECK(heard(3) == "0200");
}

TEST_CASE("two shards are sent at once, and a third one when the head has one of them") {
  TransferWorld world;
  world.talks = {TransferWorld::nothing, TransferWorld::nothing, TransferWorld::nothing,
                 TransferWorld::nothing};
  wire::ShardAsk ask = world.shard("");
  for (const char* transfer : {"0001", "0002", "0003"}) {
    ask.transfer = transfer;
    world.transfers.send(ask);
  }
  world.transfers.prepare(world.request(1, 3));
  world.run_until([&] { return world.heard.size() == 3; });
  int offers = 0;
  for (const wire::ContentMessage& each : world.heard) {
    offers += std::holds_alternative<wire::ShardOffer>(each) ? 1 : 0;
  }
  CHECK(offers == 2);
  for (std::size_t at = 0; at < 3; ++at) {
    if (!std::holds_alternative<wire::ShardOffer>(world.heard[at])) continue;
    link::say(world.streams[at], wire::ContentEnd{});
    break;
  }
  world.run_until([&] { return world.heard.size() == 4; });
  CHECK(std::get<wire::ShardOffer>(world.heard[3]).transfer == "0003");
}

TEST_CASE("shards that wait when their job is forgotten are let go") {
  TransferWorld world;
  world.talks = {TransferWorld::nothing, TransferWorld::nothing, TransferWorld::nothing};
  wire::ShardAsk ask = world.shard("");
  for (const char* transfer : {"0001", "0002", "0003", "0004"}) {
    ask.transfer = transfer;
    world.transfers.send(ask);
  }
  world.run_until([&] { return world.heard.size() == 2; });
  world.transfers.forget(ask.job);
  world.streams[0]->abort();
  ask.transfer = "0200";
  ask.job = JobId("other");
  world.transfers.send(ask);
  world.run_until([&] { return world.heard.size() == 3; });
  CHECK(std::get<wire::ShardOffer>(world.heard[2]).transfer == "0200");
}

TEST_CASE("a shard that cannot be had, or is not as it was listed, is told with its cause") {
  TransferWorld world;
  const auto refuse = [&](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    const auto offer = std::get<wire::ShardOffer>(world.heard.back());
    link::say(stream, wire::ContentRefused{offer.error.value_or(Error(ErrorCode::failed, "?"))});
    co_return;
  };
  const auto changes = [&](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    write(world.folder / "shard/model", std::string(world.weights.size(), 'x'));
    co_await world.take(std::move(stream));
  };
  const auto links = [&](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    fs::rename(world.folder / "shard/model", world.folder / "model");
    fs::create_symlink(world.folder / "model", world.folder / "shard/model");
    co_await world.take(std::move(stream));
  };
  const auto pipes = [&](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    fs::remove(world.folder / "shard/model");
    REQUIRE(::mkfifo((world.folder / "shard/model").c_str(), 0600) == 0);
    co_await world.take(std::move(stream));
  };
  wire::ShardAsk ask = world.shard("00ff");
  std::string why = "cannot look at";
  SUBCASE("not there") {
    ask.path = (world.folder / "nowhere/at all").string();
    world.talks = {refuse};
  }
  SUBCASE("changed") {
    why = "changed while it was sent";
    world.talks = {changes, refuse};
  }
  SUBCASE("a link by now") {
    why = "symbolic links";
    world.talks = {links, refuse};
  }
  SUBCASE("a pipe by now") {
    why = "cannot read";
    world.talks = {pipes, refuse};
  }
  world.transfers.send(ask);
  world.run_until([&] { return world.heard.size() == world.talks.size(); });
  const auto offer = std::get<wire::ShardOffer>(world.heard.back());
  REQUIRE(offer.error);
  CHECK(std::string(offer.error->what()).find(why) != std::string::npos);
  CHECK(offer.files.empty());
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
