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
#include "launcher/wire/identity.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace std::chrono_literals;
using dtrain::testing::TemporaryFolder;
using dtrain::testing::write;

namespace asio = boost::asio;

namespace {

const ClusterId kLab{"lab-abcdef"};
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
  wire::CertifiedKey ca = wire::make_ca(kLab, std::chrono::system_clock::now());
  head::Distribution::Limits limits;
  std::unique_ptr<head::Turns> turns;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<FileEntry> files;
  int by_head = 0;                         // times that it was the head's turn
  int offered = 0;                         // times that a node began to give it
  std::vector<wire::ContentOffer> offers;  // as they were heard
  // Until it is cancelled the head gives it to the first one only.
  asio::steady_timer gate{context, asio::steady_timer::time_point::max()};
  const std::string weights = std::string(3000000, 'w') + "end";

  explicit ManyNodes(int readers) {
    limits.readers = readers;
    turns = std::make_unique<head::Turns>(
        context,
        [this](const NodeId&) {
          ++offered;
          return std::string("127.0.0.1");
        },
        limits);
    identify(folder / "head", wire::PeerName::Role::head, "node-0");
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

  void identify(const fs::path& path, wire::PeerName::Role role, const std::string& node) const {
    const auto now = std::chrono::system_clock::now();
    const wire::PeerName name{kLab, role, NodeId(node)};
    const std::string key = wire::make_key();
    wire::save_identity(path, key, wire::sign_request(ca, wire::make_request(key, name), name, now),
                        ca.certificate_pem);
  }

  Node& add_node() {
    const std::string name = "node-" + std::to_string(nodes.size() + 1);
    auto made = std::make_unique<Node>();
    Node& node = *made;
    nodes.push_back(std::move(made));
    node.root.root = folder / name;
    identify(node.root.identity(), wire::PeerName::Role::node, name);
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
      wire::AcceptedPeer peer = co_await wire::accept_tls(std::move(socket), tls, 20s);
      const auto guest = std::make_shared<head::Guest>(
          head::Guest{peer.name.node, context.get_executor(), peer.stream, false});
      asio::co_spawn(context, serve(guest),
                     [guest](const std::exception_ptr&) { guest->stream->abort(); });
    }
  }
  asio::awaitable<void> serve(head::GuestPtr guest) {
    const std::string what = "checkpoint";
    const wire::ContentMessage message = co_await link::hear(guest->stream);
    if (const auto* offer = std::get_if<wire::ContentOffer>(&message)) {
      offers.push_back(*offer);
      co_await turns->offered(guest, what, *offer);
    }
    CHECK(std::get<wire::CheckpointAsk>(message).elsewhere);
    const std::shared_ptr<void> turn = co_await turns->turn(guest, what, weights.size());
    boost::system::error_code cancelled;
    if (++by_head > 1)
      co_await gate.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    link::say(guest->stream, wire::ContentFiles{files, true});
    co_await link::give_all(guest->stream, link::files_of(folder / "stored", files), false);
  }

  template <typename Ready>
  void run_until(Ready ready) {
    while (!ready()) REQUIRE(context.run_one_for(60s) == 1);
  }
};

}  // namespace

TEST_CASE("what the head gave to one, others have from there") {
  ManyNodes lab(1);
  ManyNodes::Node& first = lab.add_node();
  ManyNodes::prepare(first);
  lab.run_until([&] { return first.prepared && lab.offered == 1; });
  lab.check_whole(first);
  CHECK(lab.offers.at(0).job == kJob);
  CHECK(lab.offers.at(0).checkpoint == 3);
  for (int i = 0; i < 6; ++i) ManyNodes::prepare(lab.add_node());
  const auto prepared = [&] {
    return std::count_if(lab.nodes.begin(), lab.nodes.end(),
                         [](const auto& each) { return each->prepared.has_value(); });
  };
  // It may be the head's turn for one of them, which waits for the others then.
  lab.run_until([&] { return prepared() >= 6; });
  lab.gate.cancel();
  lab.run_until([&] { return prepared() == 7; });
  for (const auto& each : lab.nodes) lab.check_whole(*each);
  CHECK(lab.by_head <= 2);
}

TEST_CASE("who does not reach the node that it is sent to has it from the head") {
  ManyNodes lab(1);
  // Nobody listens there.
  asio::ip::tcp::acceptor closed(lab.context, {asio::ip::address_v4::loopback(), 0});
  const int port = closed.local_endpoint().port();
  closed.close();
  lab.identify(lab.folder / "giver", wire::PeerName::Role::node, "node-9");
  const auto offers = [&]() -> asio::awaitable<void> {
    const auto tls = wire::tls_context(lab.folder / "giver", wire::PeerName::Role::node);
    const wire::FrameStreamPtr stream =
        co_await wire::dial_tls("127.0.0.1", lab.acceptor.local_endpoint().port(), tls,
                                wire::PeerName::Role::head, kLab, "/v1/node/checkpoint", 20s);
    link::say(stream, wire::ContentOffer{kJob, 1, 3, port, "00ff"});
    co_await link::hear(stream);
  };
  bool hung_up = false;
  asio::co_spawn(lab.context, offers(),
                 [&](const std::exception_ptr& ended) { hung_up = ended != nullptr; });
  lab.run_until([&] { return lab.offered == 1; });
  ManyNodes::Node& node = lab.add_node();
  ManyNodes::prepare(node);
  lab.run_until([&] { return node.prepared.has_value(); });
  lab.check_whole(node);
  CHECK(lab.by_head == 1);
  lab.run_until([&] { return hung_up; });  // it is asked no more
}

TEST_CASE("who gives what is damaged is left, and the rest comes from the head") {
  ManyNodes lab(1);
  lab.gate.expires_at(asio::steady_timer::time_point::min());
  ManyNodes::Node& first = lab.add_node();
  ManyNodes::prepare(first);
  lab.run_until([&] { return first.prepared && lab.offered == 1; });
  const fs::path damaged = first.root.checkpoint(kJob, 3) / "shard/weights";
  write(damaged, std::string(lab.weights.size(), 'x'));
  ManyNodes::Node& second = lab.add_node();
  ManyNodes::prepare(second);
  lab.run_until([&] { return second.prepared.has_value(); });
  lab.check_whole(second);
  CHECK(lab.by_head >= 2);  // and once more where what had come of the damaged one went on
}
