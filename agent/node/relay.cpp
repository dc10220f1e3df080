#include "agent/node/relay.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/this_coro.hpp>
#include <string_view>
#include <utility>

#include "agent/link/content_sources.hpp"
#include "agent/link/watched_stream.hpp"
#include "agent/node/dial.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace {

constexpr auto kGiverLimit = 5s;
constexpr std::string_view kRelayPath = "/v1/relay/";

asio::awaitable<void> bring_by(paths::NodeRoot root, ClusterId cluster,
                               wire::ContentElsewhere giver, Bring bring) {
  const auto executor = co_await asio::this_coro::executor;
  const auto tls = wire::tls_pair_context(root.identity());
  const std::string path = std::string(kRelayPath) + giver.token;
  const wire::FrameStreamPtr stream =
      co_await wire::dial_tls(giver.address, static_cast<std::uint16_t>(giver.port), tls,
                              wire::PeerName::Role::node, cluster, path, kGiverLimit, true);
  const std::shared_ptr<void> hang_up(nullptr, [stream](void*) { stream->abort(); });
  const std::function<void()> leave = [stream] { stream->abort(); };
  const wire::FrameStreamPtr giving =
      std::make_shared<link::WatchedStream>(stream, executor, leave);
  co_await bring(giving);
}

}  // namespace

Relay::Relay(paths::NodeRoot root, ClusterId cluster)
    : root_(std::move(root)), cluster_(std::move(cluster)) {}

Relay::~Relay() {
  thread_.stop();
}

void Relay::offer(std::string path, wire::ContentOffer offer,
                  std::function<link::Source()> source) {
  asio::co_spawn(
      thread_.context(),
      [this, path = std::move(path), offer = std::move(offer), source = std::move(source)] {
        return hold(path, offer, source);
      },
      asio::detached);
}

void Relay::offer(wire::ContentOffer what, const JobContent& content) {
  offer("/v1/node/content", std::move(what), [content, folder = root_.content()]() -> link::Source {
    const auto store = std::make_shared<ContentStore>(folder);
    link::ContentSources sources(*store, Error(ErrorCode::failed, "content is damaged there"));
    return
        [store, source = sources.of(content)](const std::string& sha256) { return source(sha256); };
  });
}

void Relay::Gift::end_readers(const std::optional<NodeId>& of) const {
  for (const auto& [node, reader] : readers) {
    const wire::FrameStreamPtr reads = reader.lock();
    if (reads && (!of || node == *of)) reads->abort();
  }
}

asio::awaitable<void> Relay::hold(std::string path, wire::ContentOffer offer,
                                  std::function<link::Source()> source) {
  offer.token = random_hex(16);
  const auto gift = std::make_shared<Gift>();
  try {
    gift->source = source();
    if (!door_ || !door_->is_open()) {
      door_ = Door::open(thread_.context().get_executor(), root_.identity(), cluster_,
                         [this](wire::AcceptedPeer peer) { return serve(std::move(peer)); });
    }
    gifts_[offer.token] = gift;
    offer.port = door_->port();
    const wire::FrameStreamPtr head = co_await dial_head(root_, path, true);
    const std::shared_ptr<void> hang_up(nullptr, [head](void*) { head->abort(); });
    link::say(head, offer);
    while (true) {
      const wire::ContentMessage message = co_await link::hear(head);
      const auto* forbidden = std::get_if<wire::ContentForbidden>(&message);
      if (forbidden == nullptr) continue;
      gift->forbidden.insert(forbidden->node);
      gift->end_readers(forbidden->node);
    }
  } catch (const std::exception& error) {
    // The head has had enough of it, or is gone.
    log::debug("content is not given any more", {{"why", error.what()}});
  }
  // From here on nobody would say who is forbidden.
  gift->end_readers(std::nullopt);
  gifts_.erase(offer.token);
  if (gifts_.empty() && door_) std::exchange(door_, nullptr)->close();
}

asio::awaitable<void> Relay::serve(wire::AcceptedPeer peer) {
  const auto found = peer.path.starts_with(kRelayPath)
                         ? gifts_.find(peer.path.substr(kRelayPath.size()))
                         : gifts_.end();
  if (found == gifts_.end() || found->second->forbidden.contains(peer.name.node)) {
    peer.stream->abort();
    co_return;
  }
  const std::shared_ptr<Gift> gift = found->second;
  std::erase_if(gift->readers, [](const auto& each) { return each.second.expired(); });
  gift->readers.emplace_back(peer.name.node, peer.stream);
  const wire::FrameStreamPtr stream = peer.stream;
  std::optional<Error> refused;
  try {
    co_await link::give_all(stream, gift->source, false);
  } catch (const std::exception& error) {
    refused = as_error(error);
  }
  if (refused->code() == ErrorCode::unreachable) co_return;  // it has all it wanted, or is gone
  log::info("content cannot be given to a node",
            {{"node", peer.name.node.str()}, {"why", refused->what()}});
  link::say(stream, wire::ContentRefused{*refused});
}

asio::awaitable<std::optional<std::string>> bring_from(paths::NodeRoot root, ClusterId cluster,
                                                       wire::ContentElsewhere giver,
                                                       std::function<void()> check, Bring bring) {
  check();
  std::optional<Error> trouble;
  bool is_refusal = false;
  try {
    co_await bring_by(root, cluster, giver, bring);
    co_return std::nullopt;
  } catch (const link::Refusal& refusal) {
    trouble = refusal;
    is_refusal = true;
  } catch (const std::exception& error) {
    trouble = as_error(error);
  }
  check();
  if (trouble->code() == ErrorCode::exhausted && !is_refusal) throw *trouble;
  log::info("content is not had from another node, but from the head",
            {{"node", giver.node.str()}, {"why", trouble->what()}});
  co_return trouble->what();
}

asio::awaitable<bool> is_wanted(wire::FrameStreamPtr head) {
  try {
    link::say(head, wire::ContentWhole{});
    const wire::ContentMessage message = co_await link::hear(head);
    const auto* answer = std::get_if<wire::ContentWanted>(&message);
    co_return answer != nullptr && answer->wanted;
  } catch (const Error& error) {
    log::debug("nobody says who else wants content", {{"why", error.what()}});
  }
  co_return false;
}

}  // namespace dtrain::node
