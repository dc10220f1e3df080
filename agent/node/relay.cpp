#include "agent/node/relay.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <optional>
#include <utility>

#include "agent/node/dial.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace {

constexpr auto kGiverLimit = 3s;
constexpr auto kSilence = 20s;  // of a node that gives, until the head is asked
constexpr const char* kRelayPath = "/v1/relay/";

// A connection that is dropped when its other end gives nothing for too long.
class Hurried final : public wire::FrameStream {
 public:
  Hurried(wire::FrameStreamPtr stream, const asio::any_io_executor& executor)
      : stream_(std::move(stream)), silence_(executor) {}
  ~Hurried() override { stream_->abort(); }

  asio::awaitable<wire::Frame> read() override {
    silence_.expires_after(kSilence);
    silence_.async_wait([stream = stream_](boost::system::error_code stopped) {
      if (!stopped) stream->abort();
    });
    wire::Frame frame = co_await stream_->read();
    silence_.cancel();
    co_return frame;
  }
  void send(wire::Frame frame) override { stream_->send(std::move(frame)); }
  asio::awaitable<void> queue_below(std::size_t bytes) override {
    return stream_->queue_below(bytes);
  }
  void close() override { stream_->close(); }
  void abort() override { stream_->abort(); }
  bool is_open() const override { return stream_->is_open(); }
  std::string local_address() const override { return stream_->local_address(); }
  bool peer_is_here() const override { return stream_->peer_is_here(); }

 private:
  wire::FrameStreamPtr stream_;
  asio::steady_timer silence_;
};

asio::awaitable<wire::FrameStreamPtr> dial_giver(const paths::NodeRoot& root,
                                                 const ClusterId& cluster,
                                                 wire::ContentElsewhere giver) {
  const auto executor = co_await asio::this_coro::executor;
  const auto tls = wire::tls_pair_context(root.identity());
  const std::string path = kRelayPath + giver.token;
  const wire::FrameStreamPtr stream =
      co_await wire::dial_tls(giver.address, static_cast<std::uint16_t>(giver.port), tls,
                              wire::PeerName::Role::node, cluster, path, kGiverLimit, true);
  co_return std::make_shared<Hurried>(stream, executor);
}

bool zstd_of(const wire::ContentMessage& hello) {
  const auto* content = std::get_if<wire::ContentHello>(&hello);
  return content != nullptr && content->zstd;
}

bool offer_of(const wire::ContentMessage& answer) {
  const auto* grant = std::get_if<wire::ContentGrant>(&answer);
  const auto* files = std::get_if<wire::ContentFiles>(&answer);
  return (grant != nullptr && grant->offer) || (files != nullptr && files->offer);
}

}  // namespace

Relay::Relay(paths::NodeRoot root, ClusterId cluster)
    : root_(std::move(root)), cluster_(std::move(cluster)) {}

Relay::~Relay() {
  thread_.stop();
}

void Relay::offer(std::string path, wire::ContentOffer offer, std::function<Gift()> make) {
  asio::co_spawn(
      thread_.context(),
      [this, path = std::move(path), offer = std::move(offer), make = std::move(make)] {
        return hold(path, offer, make);
      },
      asio::detached);
}

asio::awaitable<void> Relay::hold(std::string path, wire::ContentOffer offer,
                                  std::function<Gift()> make) {
  offer.token = random_hex(16);
  try {
    const auto gift = std::make_shared<Gift>(make());
    if (!door_) {
      door_ = Door::open(thread_.context().get_executor(), root_.identity(), cluster_,
                         [this](wire::AcceptedPeer peer) { return serve(std::move(peer)); });
    }
    gifts_[offer.token] = gift;
    offer.port = door_->port();
    const wire::FrameStreamPtr head = co_await dial_head(root_, path, true);
    const std::shared_ptr<void> hang_up(nullptr, [head](void*) { head->abort(); });
    link::say(head, offer);
    while (true) co_await link::hear(head);
  } catch (const std::exception& error) {
    // The head has had enough of it, or is gone.
    log::debug("content is not given any more", {{"why", error.what()}});
  }
  // Those that take it have it to the end.
  gifts_.erase(offer.token);
  if (gifts_.empty() && door_) std::exchange(door_, nullptr)->close();
}

asio::awaitable<void> Relay::serve(wire::AcceptedPeer peer) {
  const auto found = peer.path.starts_with(kRelayPath)
                         ? gifts_.find(peer.path.substr(std::string_view(kRelayPath).size()))
                         : gifts_.end();
  if (found == gifts_.end()) {
    peer.stream->abort();
    co_return;
  }
  const std::shared_ptr<Gift> gift = found->second;
  std::optional<Error> refused;
  try {
    const wire::ContentMessage hello = co_await link::hear(peer.stream);
    link::say(peer.stream, gift->answer);
    co_await link::give_all(peer.stream, gift->source, zstd_of(hello));
  } catch (const std::exception& error) {
    refused = as_error(error);
  }
  if (refused->code() == ErrorCode::unreachable) co_return;  // it has all it wanted, or is gone
  log::info("content cannot be given to a node",
            {{"node", peer.name.node.str()}, {"why", refused->what()}});
  link::say(peer.stream, wire::ContentRefused{*refused});
}

asio::awaitable<bool> ask_for(paths::NodeRoot root, ClusterId cluster, wire::FrameStreamPtr head,
                              wire::ContentMessage hello, std::function<void()> check, Take take) {
  link::say(head, hello);
  wire::ContentMessage answer = co_await link::hear(head);
  while (const auto* elsewhere = std::get_if<wire::ContentElsewhere>(&answer)) {
    const wire::ContentElsewhere giver = *elsewhere;
    std::optional<Error> trouble;
    bool full = false;
    try {
      const wire::FrameStreamPtr stream = co_await dial_giver(root, cluster, giver);
      link::say(stream, hello);
      wire::ContentMessage given = co_await link::hear(stream);
      co_await take(stream, std::move(given));
      log::debug("content came from another node", {{"node", giver.node.str()}});
      co_return true;
    } catch (const link::Refusal& refusal) {
      trouble = refusal;
    } catch (const std::exception& error) {
      trouble = as_error(error);
      full = trouble->code() == ErrorCode::exhausted;
    }
    check();
    if (full) throw *trouble;
    log::info("content is not had from another node, but from the head",
              {{"node", giver.node.str()}, {"why", trouble->what()}});
    link::say(head, wire::ContentMissed{trouble->what()});
    answer = co_await link::hear(head);
  }
  const bool offer = offer_of(answer);
  co_await take(head, std::move(answer));
  co_return offer;
}

}  // namespace dtrain::node
