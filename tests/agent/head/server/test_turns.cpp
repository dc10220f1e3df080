#include "agent/head/server/turns.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "agent/link/content_exchange.hpp"
#include "agent/node/checkpoint_transfers.hpp"
#include "agent/node/relay.hpp"
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

using dtrain::testing::kLab;
const JobId kJob{"job-1"};

// A head that gives one checkpoint by turns, and nodes that want it, all on loopback.
struct ManyNodes {
  struct Node {
    paths::NodeRoot root;
    std::unique_ptr<node::Relay> relay;
    std::unique_ptr<node::CheckpointTransfers> transfers;
    std::optional<wire::AttemptPrepared> prepared;
  };

  TemporaryFolder folder;
  asio::io_context context;
  asio::ip::tcp::acceptor acceptor{context, {asio::ip::address_v4::loopback(), 0}};
  dtrain::testing::Cluster cluster;
  head::Distribution::Limits limits;
  std::unique_ptr<head::Turns> turns;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<FileEntry> files;
  int asked = 0;  // times that somebody asked for it
  // What is done in the place of the turns.
  std::function<asio::awaitable<void>(wire::FrameStreamPtr)> by_hand;
  int looked_up = 0;                       // times that the head looked where a large file is
  std::function<void()> before_offer;      // called when a node is about to be asked by others
  std::vector<wire::ContentOffer> offers;  // as they were heard
  bool keeps_offers = false;               // and not heeded
  wire::FrameStreamPtr kept;
  const std::string weights = std::string(3000000, 'w') + "end";

  explicit ManyNodes(int readers) {
    limits.readers = readers;
    limits.about_to_give = 60s;  // however busy this machine is
    turns = std::make_unique<head::Turns>(
        context,
        [this](const NodeId&) {
          if (before_offer) before_offer();
          return std::string("127.0.0.1");
        },
        limits);
    cluster.save(folder / "head", wire::PeerName::Role::head, "node-0");
    write(folder / "stored/shard/weights", weights);
    write(folder / "stored/manifest.json", "{}");
    for (const char* path : {"shard/weights", "manifest.json"}) {
      const FileSum sum = sum_file(folder / "stored" / path);
      files.push_back({path, sum.size, sum.sha256});
    }
    asio::co_spawn(context, accept(), asio::detached);
  }
  ~ManyNodes() {
    for (const auto& each : nodes) {
      each->transfers.reset();
      each->relay.reset();
    }
  }

  Node& add_node() {
    const std::string name = "node-" + std::to_string(nodes.size() + 1);
    auto made = std::make_unique<Node>();
    Node& node = *made;
    nodes.push_back(std::move(made));
    node.root.root = folder / name;
    cluster.save(node.root.identity(), wire::PeerName::Role::node, name);
    const nlohmann::json config = {
        {"cluster", kLab.str()},
        {"node", name},
        {"address", "127.0.0.1"},
        {"head", {{"addresses", {"127.0.0.1"}}, {"port", acceptor.local_endpoint().port()}}}};
    write(node.root.config(), config.dump());
    node.relay = std::make_unique<node::Relay>(node.root, kLab);
    node.transfers = std::make_unique<node::CheckpointTransfers>(
        context.get_executor(), node.root, kLab, *node.relay,
        [&node](const wire::AttemptPrepared& answer) { node.prepared = answer; });
    return node;
  }
  static void prepare(Node& node) {
    wire::PrepareAttempt request;
    request.job = kJob;
    request.attempt = 1;
    request.checkpoint = 3;
    node.transfers->prepare(request);
  }
  void check_whole(const Node& node) const {
    REQUIRE(node.prepared);
    CHECK_FALSE(node.prepared->error);
    CHECK(read_file(node.root.checkpoint(kJob, 3) / "shard/weights") == weights);
  }

  asio::awaitable<void> accept() {
    while (true) {
      asio::ip::tcp::socket socket = co_await acceptor.async_accept(asio::use_awaitable);
      const auto tls = wire::tls_context(folder / "head", wire::PeerName::Role::head);
      wire::AcceptedPeer peer =
          co_await wire::accept_tls(std::move(socket), tls, dtrain::testing::kPatience);
      const auto guest = std::make_shared<head::Guest>(
          head::Guest{peer.name.node, context.get_executor(), peer.stream, false, {}});
      asio::co_spawn(context, serve(guest),
                     [guest](const std::exception_ptr&) { guest->stream->abort(); });
    }
  }
  asio::awaitable<void> serve(head::GuestPtr guest) {
    const std::string what = "checkpoint";
    const wire::ContentMessage message = co_await link::hear(guest->stream);
    if (const auto* offer = std::get_if<wire::ContentOffer>(&message)) {
      offers.push_back(*offer);
      if (keeps_offers) {
        kept = guest->stream;
        co_await link::hear(kept);
      }
      co_await turns->hear_offer(guest, what, *offer);
      co_return;
    }
    CHECK(std::get<wire::CheckpointAsk>(message).elsewhere);
    link::say(guest->stream, wire::ContentFiles{files});
    const link::Source stored = link::files_of(folder / "stored", files);
    const link::Source source = [this, stored](const std::string& sha256) {
      if (sha256 == files[0].sha256) ++looked_up;
      return stored(sha256);
    };
    ++asked;
    if (by_hand) {
      co_await by_hand(guest->stream);
      co_return;
    }
    co_await turns->give_all(guest, what, true, source, false);
  }
  // Where nothing is missed, each want is looked up once, and once more where the head answers it.
  int by_head() const { return looked_up - asked; }

  // What one says who has a node's certificate and is none.
  asio::awaitable<wire::FrameStreamPtr> dial(std::string node, wire::PeerName::Role role, int port,
                                             std::string path) {
    cluster.save(folder / node, wire::PeerName::Role::node, node);
    const auto tls = role == wire::PeerName::Role::head
                         ? wire::tls_context(folder / node, wire::PeerName::Role::node)
                         : wire::tls_pair_context(folder / node);
    co_return co_await wire::dial_tls("127.0.0.1", static_cast<std::uint16_t>(port), tls, role,
                                      kLab, path, dtrain::testing::kPatience);
  }
  int port() const { return acceptor.local_endpoint().port(); }

  template <typename Ready>
  void run_until(Ready ready) {
    while (!ready()) REQUIRE(context.run_one_for(60s) == 1);
  }
};

}  // namespace

TEST_CASE("what the head gave to one, others have from there") {
  ManyNodes lab(1);
  for (int i = 0; i < 7; ++i) ManyNodes::prepare(lab.add_node());
  lab.run_until([&] {
    return std::all_of(lab.nodes.begin(), lab.nodes.end(),
                       [](const auto& each) { return each->prepared.has_value(); });
  });
  for (const auto& each : lab.nodes) lab.check_whole(*each);
  CHECK(lab.asked == 7);
  CHECK(lab.by_head() < 7);
  REQUIRE_FALSE(lab.offers.empty());
  CHECK(lab.offers[0].job == kJob);
  CHECK(lab.offers[0].checkpoint == 3);
}

TEST_CASE("one alone is not asked to give") {
  ManyNodes lab(1);
  ManyNodes::Node& node = lab.add_node();
  ManyNodes::prepare(node);
  lab.run_until([&] { return node.prepared.has_value(); });
  lab.check_whole(node);
  CHECK(lab.offers.empty());
}

TEST_CASE("who does not reach the node that it is sent to has it from the head") {
  ManyNodes lab(1);
  // One that has the head's turn until it hangs up.
  wire::FrameStreamPtr holder;
  const auto hold = [&]() -> asio::awaitable<void> {
    const std::string path = "/v1/node/checkpoint";
    const std::string name = "node-8";
    holder = co_await lab.dial(name, wire::PeerName::Role::head, lab.port(), path);
    link::say(holder, wire::CheckpointAsk{kJob, 3, true});
    link::say(holder, wire::ContentWant{{{lab.files[0].sha256, 0}}});
  };
  asio::co_spawn(lab.context, hold(), asio::detached);
  lab.run_until([&] { return lab.looked_up >= 2; });
  ManyNodes::Node& node = lab.add_node();
  ManyNodes::prepare(node);
  lab.run_until([&] { return lab.looked_up >= 3; });  // it waits
  // Nobody listens where it is sent.
  asio::ip::tcp::acceptor closed(lab.context, {asio::ip::address_v4::loopback(), 0});
  const int port = closed.local_endpoint().port();
  closed.close();
  const auto offer = [&]() -> asio::awaitable<void> {
    const std::string path = "/v1/node/checkpoint";
    const std::string name = "node-9";
    const wire::FrameStreamPtr stream =
        co_await lab.dial(name, wire::PeerName::Role::head, lab.port(), path);
    link::say(stream, wire::ContentOffer{kJob, 1, 3, port, "00ff"});
    co_await link::hear(stream);
  };
  bool is_sent = false;
  lab.before_offer = [&] { is_sent = true; };
  asio::co_spawn(lab.context, offer(), asio::detached);
  lab.run_until([&] { return is_sent; });
  holder->abort();
  lab.run_until([&] { return node.prepared.has_value(); });
  lab.check_whole(node);
  CHECK(lab.looked_up == 5);  // its second want too, after the miss, and that one was answered
}

TEST_CASE("what one gave before it died does not come again") {
  ManyNodes lab(1);
  lab.cluster.save(lab.folder / "giver", wire::PeerName::Role::node, "node-9");
  const link::Source stored = link::files_of(lab.folder / "stored", lab.files);
  const node::Door::Serve serve = [&](wire::AcceptedPeer peer) -> asio::awaitable<void> {
    const wire::ContentMessage message = co_await link::hear(peer.stream);
    CHECK(std::get<wire::ContentWant>(message).blobs.size() == 2);
    BlobSender sender({stored(lab.files[0].sha256)}, false);
    link::say(peer.stream, wire::ContentStream{lab.weights.size()});
    for (int i = 0; i < 20; ++i) peer.stream->send({false, sender.next()});
    co_await peer.stream->queue_below(1);
  };
  const auto door = node::Door::open(lab.context.get_executor(), lab.folder / "giver", kLab, serve);
  std::uint64_t offset = 0;
  lab.by_hand = [&](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    co_await link::hear(stream);
    link::say(stream, wire::ContentElsewhere{NodeId("node-9"), "127.0.0.1", door->port(), "00ff"});
    const wire::ContentMessage missed = co_await link::hear(stream);
    CHECK(std::holds_alternative<wire::ContentMissed>(missed));
    const wire::ContentMessage message = co_await link::hear(stream);
    const auto want = std::get<wire::ContentWant>(message);
    for (const wire::ContentWant::Blob& blob : want.blobs) {
      offset = std::max(offset, blob.offset);
    }
    co_await link::give(stream, want, stored, false);
    co_await link::hear(stream);  // until it has it all, and hangs up
  };
  ManyNodes::Node& node = lab.add_node();
  ManyNodes::prepare(node);
  lab.run_until([&] { return node.prepared.has_value(); });
  door->close();
  lab.check_whole(node);
  CHECK(lab.asked == 1);  // by one connection
  CHECK(offset > 1000000);
}

TEST_CASE("who gives what is damaged is left, and the rest comes from the head") {
  ManyNodes lab(1);
  ManyNodes::Node& first = lab.add_node();
  ManyNodes::Node& second = lab.add_node();
  bool is_done = false;
  lab.before_offer = [&] {
    if (std::exchange(is_done, true)) return;
    const bool is_first = fs::exists(first.root.checkpoint(kJob, 3));
    const ManyNodes::Node& giver = is_first ? first : second;
    write(giver.root.checkpoint(kJob, 3) / "shard/weights", std::string(lab.weights.size(), 'x'));
  };
  ManyNodes::prepare(first);
  ManyNodes::prepare(second);
  lab.run_until([&] { return first.prepared && second.prepared; });
  REQUIRE(lab.offers.size() == 1);
  const auto is_whole = [&](const ManyNodes::Node& node) {
    return read_file(node.root.checkpoint(kJob, 3) / "shard/weights") == lab.weights;
  };
  CHECK_FALSE(second.prepared->error);
  CHECK_FALSE(first.prepared->error);
  CHECK(is_whole(first) != is_whole(second));  // one was damaged by this test
}

TEST_CASE("to whom it is forbidden nothing is given any more") {
  ManyNodes lab(1);
  lab.keeps_offers = true;
  ManyNodes::Node& giver = lab.add_node();
  giver.relay->offer("/v1/node/checkpoint", {kJob, 1, 3, 0, {}},
                     [&] { return link::files_of(lab.folder / "stored", lab.files); });
  lab.run_until([&] { return lab.kept != nullptr; });
  int ended = 0;
  bool began = false;
  const auto take = [&](std::string name) -> asio::awaitable<void> {
    const std::string path = "/v1/relay/" + lab.offers[0].token;
    const wire::FrameStreamPtr stream =
        co_await lab.dial(name, wire::PeerName::Role::node, lab.offers[0].port, path);
    link::say(stream, wire::ContentWant{{{lab.files[0].sha256, 0}}});
    while (true) {
      co_await stream->read();
      began = true;
    }
  };
  const auto note = [&](const std::exception_ptr&) { ++ended; };
  const std::string name = "node-2";
  asio::co_spawn(lab.context, take(name), note);
  lab.run_until([&] { return began; });
  link::say(lab.kept, wire::ContentForbidden{NodeId("node-2")});
  lab.run_until([&] { return ended == 1; });
  began = false;
  asio::co_spawn(lab.context, take(name), note);
  lab.run_until([&] { return ended == 2; });
  CHECK_FALSE(began);
}
