#include "agent/head/server/content_server.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <map>
#include <optional>
#include <vector>

#include "agent/head/server/preparations.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/blob_stream.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/node.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using nlohmann::json;
using UnixSocket = asio::local::stream_protocol::socket;

namespace {

constexpr std::size_t kOfferLimit = kContentEntryLimit;  // blobs of one upload

json missing_trees(const ContentStore& store, const std::vector<std::string>& trees) {
  json missing = json::array();
  for (const std::string& name : trees) {
    bool whole = store.has(name);
    try {
      whole = whole && missing_blobs(store, store.tree(name)).empty();
    } catch (const Error& error) {
      log::warn("a tree is not whole", {{"tree", name}, {"why", error.what()}});
      whole = false;
    }
    if (!whole) missing.push_back(name);
  }
  json answer;
  answer["missing"] = std::move(missing);
  return answer;
}

// What the client offers and this store lacks: sum to size.
struct Offer {
  std::map<std::string, std::uint64_t> wanted;
  std::vector<std::string> all;
  json answer;
  bool zstd = false;
};

Offer read_offer(const ContentStore& store, const std::string& text) {
  const json offer = wire::parse_json(text, "the offer", wire::kFrameLimit);
  Offer result;
  result.zstd = wire::get_bool(offer, "zstd", false);
  const json& blobs = wire::member(offer, "blobs");
  if (!blobs.is_array() || blobs.size() > kOfferLimit) {
    throw Error(ErrorCode::invalid, "\"blobs\" is no list, or too long");
  }
  json want = json::array();
  std::uint64_t bytes = 0;
  for (const json& blob : blobs) {
    const std::string sha256 = wire::get_string(blob, "sha256");
    const auto size = static_cast<std::uint64_t>(wire::get_int(blob, "size", 0, INT64_MAX));
    result.all.push_back(sha256);
    if (store.has(sha256, size) || !result.wanted.emplace(sha256, size).second) continue;
    const std::uint64_t offset = store.partial(sha256, size);
    bytes += size - offset;
    want.push_back({{"sha256", sha256}, {"offset", offset}});
  }
  check_room(store.root(), bytes);
  result.answer["type"] = "want";
  result.answer["blobs"] = std::move(want);
  return result;
}

}  // namespace

ContentServer::ContentServer(asio::io_context& engine_context, Engine& engine, Turns& turns,
                             fs::path root)
    : engine_context_(engine_context),
      engine_(engine),
      turns_(turns),
      store_(std::move(root)),
      sources_(store_,
               Error(ErrorCode::failed, "content is damaged on the head")
                   .with_hint("`dtrain submit`, or `dtrain up`, sends anew what is missing")) {}

void ContentServer::missing(const std::vector<std::string>& trees, std::function<void(json)> done) {
  // Not by the idle thread: somebody waits for the answer.
  checks_.add([this, trees, done = std::move(done)] {
    json answer;
    try {
      answer = missing_trees(store_, trees);
    } catch (const std::exception& error) {
      answer = wire::error_to_json(as_error(error));
    }
    asio::post(engine_context_, [done, answer = std::move(answer)] { done(answer); });
  });
}

void ContentServer::upload(UnixSocket socket, std::string request, std::shared_ptr<void> held) {
  const auto moved = std::make_shared<UnixSocket>(idle_.take(std::move(socket)));
  asio::co_spawn(
      idle_.context(),
      [this, moved, text = std::move(request)] { return take_upload(std::move(*moved), text); },
      [held = std::move(held)](const std::exception_ptr& failed) {
        if (failed) std::rethrow_exception(failed);
      });
}

std::set<std::string> ContentServer::held() const {
  const std::lock_guard lock(held_mutex_);
  std::set<std::string> all;
  for (const std::set<std::string>& each : held_) all.insert(each.begin(), each.end());
  return all;
}

// Holds what one upload offers for as long as it lasts; then each is noted as used, and the job
// that names them follows.
class ContentServer::Held {
 public:
  explicit Held(ContentServer& server) : server_(server) {
    const std::lock_guard lock(server_.held_mutex_);
    mine_ = server_.held_.emplace(server_.held_.end());
  }
  ~Held() {
    try {
      for (const std::string& sha256 : *mine_) server_.store_.has(sha256);
    } catch (const Error& error) {
      log::warn("the use of content cannot be noted", {{"why", error.what()}});
    }
    const std::lock_guard lock(server_.held_mutex_);
    server_.held_.erase(mine_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  void add(const std::vector<std::string>& sums) {
    const std::lock_guard lock(server_.held_mutex_);
    mine_->insert(sums.begin(), sums.end());
  }

 private:
  ContentServer& server_;
  std::list<std::set<std::string>>::iterator mine_;
};

asio::awaitable<void> ContentServer::take_upload(UnixSocket socket, std::string request) {
  wire::FrameStreamPtr stream;
  try {
    stream = co_await wire::accept_unix(std::move(socket), std::move(request));
  } catch (const Error& error) {
    log::debug("no upload after all", {{"reason", error.what()}});
    co_return;
  }
  Held held(*this);
  try {
    // A large offer comes in several frames; what is wanted is said of each.
    while (true) {
      const wire::Frame first = co_await stream->read();
      Offer offer = read_offer(store_, first.bytes);
      held.add(offer.all);
      stream->send_text(wire::dump(offer.answer));
      if (offer.wanted.empty()) continue;
      BlobReceiver receiver(store_, std::move(offer.wanted), offer.zstd);
      while (true) {
        const wire::Frame frame = co_await stream->read();
        if (frame.text) break;  // {"type": "end"}
        receiver.take(frame.bytes);
      }
      receiver.finish();
      json done;
      done["type"] = "done";
      done["bytes"] = receiver.received();
      stream->send_text(wire::dump(done));
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unreachable) {
      log::warn("an upload failed", {{"why", error.what()}});
    }
    stream->send_text(wire::dump(wire::error_to_json(error)));
  } catch (const std::exception& error) {
    log::error("an upload failed", {{"why", error.what()}});
  }
  stream->close();
}

void ContentServer::serve_node(const wire::CallerPtr& caller) {
  guests_.let_in(caller, idle_.context().get_executor(),
                 [this](GuestPtr guest) { return serve(std::move(guest)); });
}

void ContentServer::end(const NodeId& node) {
  guests_.end(node);
}

asio::awaitable<JobContent> ContentServer::content_of(NodeId node, JobId job, int attempt) {
  const auto find = [this, node, job, attempt] { return engine_.content_for(node, job, attempt); };
  std::optional<JobContent> content = co_await ask(engine_context_, find);
  if (!content) {
    throw Error(ErrorCode::denied, "attempt " + std::to_string(attempt) + " of " + job.str() +
                                       " is not " + node.str() + "'s, or is over");
  }
  co_return std::move(*content);
}

asio::awaitable<JobContent> ContentServer::content_of(NodeId node, std::string preparation) {
  const auto find = [this, node, preparation] {
    return preparations_->content_for(node, preparation);
  };
  std::optional<JobContent> content = co_await ask(engine_context_, find);
  if (!content) {
    throw Error(ErrorCode::denied, "that preparation is not " + node.str() + "'s, or is over");
  }
  co_return std::move(*content);
}

asio::awaitable<void> ContentServer::serve(GuestPtr guest) {
  const NodeId node = guest->node;
  const wire::FrameStreamPtr stream = guest->stream;
  try {
    const wire::ContentMessage message = co_await link::hear(stream);
    if (const auto* hello = std::get_if<wire::ContentHello>(&message)) {
      const JobContent content = co_await content_of(node, hello->job, hello->attempt);
      co_await give(guest, content, hello->zstd, hello->elsewhere);
    } else if (const auto* offer = std::get_if<wire::ContentOffer>(&message)) {
      JobContent content;
      if (offer->preparation.empty()) {
        content = co_await content_of(node, offer->job, offer->attempt);
      } else {
        content = co_await content_of(node, offer->preparation);
      }
      const std::string what = join(content.trees(), ",");
      co_await turns_.hear_offer(guest, what, *offer);
    } else if (const auto* preparation = std::get_if<wire::PreparationHello>(&message)) {
      const JobContent content = co_await content_of(node, preparation->key);
      co_await give(guest, content, preparation->zstd, preparation->elsewhere);
    } else {
      throw Error(ErrorCode::invalid, "content is asked for without a hello");
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unreachable) co_return;  // it has all it wanted, or is gone
    log::warn("content is refused", {{"node", node.str()}, {"why", error.what()}});
    link::say(stream, wire::ContentRefused{error});
  } catch (const std::exception& error) {
    log::error("content cannot be given", {{"node", node.str()}, {"why", error.what()}});
  }
  stream->close();
}

asio::awaitable<void> ContentServer::give(GuestPtr guest, JobContent content, bool zstd,
                                          bool elsewhere) {
  link::say(guest->stream, wire::ContentGrant{content});
  const std::string what = join(content.trees(), ",");
  const link::Source source = sources_.of(content);
  co_await turns_.give_all(guest, what, elsewhere, source, zstd);
}

}  // namespace dtrain::head
