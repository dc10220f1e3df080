#include "agent/head/server/checkpoint_transfers.hpp"

#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <utility>

#include "agent/head/store/checkpoints.hpp"
#include "agent/link/content_exchange.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain::head {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kThreads = 2;

void remove_what_came(const fs::path& folder) {
  try {
    remove_tree(folder);
    remove_tree(link::part_of(folder));
  } catch (const Error&) {  // goes with its attempt
  }
}

}  // namespace

CheckpointTransfers::CheckpointTransfers(asio::io_context& engine_context, Engine& engine,
                                         NodeConnections& nodes, Turns& turns)
    : engine_context_(engine_context),
      engine_(engine),
      nodes_(nodes),
      turns_(turns),
      threads_(kThreads) {
  NodeConnections::BulkHooks hooks;
  hooks.opened = [this](const NodeId& node) {
    for (const Key& key : fetches_of(node)) ask_node(key);
  };
  nodes_.on_bulk(std::move(hooks));
}

CheckpointTransfers::~CheckpointTransfers() {
  stop();
}

void CheckpointTransfers::stop() {
  threads_.stop();
  threads_.join();
}

std::vector<CheckpointTransfers::Key> CheckpointTransfers::fetches_of(const NodeId& node) const {
  std::vector<Key> keys;
  for (auto at = fetches_.lower_bound({node, ""}); at != fetches_.end(); ++at) {
    if (at->first.first != node) break;
    keys.push_back(at->first);
  }
  return keys;
}

std::string CheckpointTransfers::fetch(const NodeId& node, wire::ShardAsk ask,
                                       const fs::path& folder, Nodes::Fetched done) {
  ask.transfer = random_hex(8);
  const Key key{node, ask.transfer};
  fetches_[key] = {std::move(ask), folder, std::move(done), false, false, nullptr};
  ask_node(key);
  return key.second;
}

void CheckpointTransfers::ask_node(const Key& key) {
  if (nodes_.takes_commands(key.first) && !nodes_.has_feature(key.first, "shards")) {
    // Not at once: the engine is in the middle of something.
    asio::post(engine_context_, [this, key] { finish(key, agent_too_old("send a checkpoint")); });
    return;
  }
  nodes_.send_bulk(key.first, fetches_.at(key).ask);
}

void CheckpointTransfers::taken(const NodeId& node, const std::string& transfer,
                                const std::optional<Error>& error) {
  const auto found = fetches_.find({node, transfer});
  if (found == fetches_.end()) return;
  if (const GuestPtr guest = found->second.guest) {
    asio::post(guest->executor, [guest, error] {
      link::say(guest->stream, error ? wire::ContentMessage(wire::ContentRefused{*error})
                                     : wire::ContentMessage(wire::ContentEnd{}));
      guest->stream->close();
    });
  }
  fetches_.erase(found);
}

void CheckpointTransfers::give_up(const NodeId& node) {
  for (const Key& key : fetches_of(node)) {
    asio::post(engine_context_, [this, key] {
      finish(key, Error(ErrorCode::unreachable, key.first.str() + " was lost"));
    });
  }
}

void CheckpointTransfers::finish(const Key& key, const Error& error) {
  const auto found = fetches_.find(key);
  if (found == fetches_.end() || found->second.arrived) return;
  const Fetch fetch = std::move(found->second);
  fetches_.erase(found);
  if (fetch.guest) {
    hang_up(fetch.guest);  // what came is removed when it writes there no more
  } else {
    asio::post(threads_, [folder = fetch.folder] { remove_what_came(folder); });
  }
  fetch.done(error, {});
}

// A connection for a shard; where it is to be brought, absent when it is there.
std::optional<fs::path> CheckpointTransfers::offered(const GuestPtr& guest,
                                                     const std::string& transfer) {
  const auto found = fetches_.find({guest->node, transfer});
  if (found == fetches_.end()) {
    throw Error(ErrorCode::not_found, "the head does not wait for this shard");
  }
  Fetch& fetch = found->second;
  if (fetch.guest) hang_up(fetch.guest);
  if (fetch.guest && !fetch.arrived) {
    throw Error(ErrorCode::timeout, "the connection before this one is not over yet");
  }
  fetch.guest = guest;
  if (fetch.arrived) return std::nullopt;
  return fetch.folder;
}

// The guest's bring has ended: it writes no more.
void CheckpointTransfers::brought(const GuestPtr& guest, const fs::path& folder,
                                  wire::ShardOffer offer, const std::optional<Error>& error,
                                  bool lost) {
  const Key key{guest->node, offer.transfer};
  const auto found = fetches_.find(key);
  if (found == fetches_.end()) {
    hang_up(guest);  // given up meanwhile
    asio::post(threads_, [folder] { remove_what_came(folder); });
    return;
  }
  Fetch& fetch = found->second;
  if (!error) {
    fetch.arrived = true;
    fetch.done(std::nullopt, std::move(offer.files));
    return;
  }
  // The node dials again; it does not listen to why while it sends.
  hang_up(guest);
  fetch.guest.reset();
  // Of what came damaged at first the rest was sent: of all of it the node tells what has changed.
  const bool damaged = !offer.error && error->code() == ErrorCode::failed;
  if (lost || (damaged && !std::exchange(fetch.damaged, true))) return;
  finish(key, *error);
}

// ---- On the guest's thread

void CheckpointTransfers::serve_node(const wire::CallerPtr& caller) {
  guests_.let_in(caller, asio::make_strand(threads_),
                 [this](GuestPtr guest) { return serve(std::move(guest)); });
}

asio::awaitable<void> CheckpointTransfers::serve(GuestPtr guest) {
  try {
    wire::ContentMessage message = co_await link::hear(guest->stream);
    if (auto* offer = std::get_if<wire::ShardOffer>(&message)) {
      co_await bring_shard(guest, std::move(*offer));
      co_return;  // answered when it is safe
    }
    if (const auto* given = std::get_if<wire::ContentOffer>(&message)) {
      co_await hear_offer(guest, *given);
      guest->stream->close();
      co_return;
    }
    const auto* request = std::get_if<wire::CheckpointAsk>(&message);
    if (request == nullptr) throw Error(ErrorCode::invalid, "neither a shard nor a checkpoint");
    co_await give_checkpoint(guest, *request);
  } catch (const std::exception& failed) {
    const Error error = as_error(failed);
    if (error.code() == ErrorCode::unreachable) co_return;  // it has all it wanted, or is gone
    log::info("a checkpoint is refused", {{"node", guest->node.str()}, {"why", error.what()}});
    link::say(guest->stream, wire::ContentRefused{error});
    guest->stream->close();
  }
}

asio::awaitable<void> CheckpointTransfers::bring_shard(GuestPtr guest, wire::ShardOffer offer) {
  const auto begin = [this, guest, transfer = offer.transfer] { return offered(guest, transfer); };
  const std::optional<fs::path> folder = co_await ask(engine_context_, begin);
  if (!folder) co_return;
  std::optional<Error> error = offer.error;
  try {
    const link::Progress nobody_asks = [](std::uint64_t) {};
    if (!error) co_await link::bring_folder(guest->stream, *folder, offer.files, nobody_asks);
  } catch (const std::exception& failed) {
    error = as_error(failed);
  }
  const bool lost = !guest->stream->is_open();
  asio::post(engine_context_,
             [this, guest, folder = *folder, offer = std::move(offer), error, lost]() mutable {
               brought(guest, folder, std::move(offer), error, lost);
             });
}

asio::awaitable<fs::path> CheckpointTransfers::checkpoint_for(NodeId node, JobId job, int number) {
  const auto find = [this, node, job, number]() -> std::optional<fs::path> {
    try {
      if (!engine_.knows_share(node, job, engine_.newest_attempt(job))) return std::nullopt;
    } catch (const Error&) {  // no such job
      return std::nullopt;
    }
    return engine_.checkpoint(job, number);
  };
  const std::optional<fs::path> folder = co_await ask(engine_context_, find);
  if (!folder) {
    throw Error(ErrorCode::not_found, "the head has no such checkpoint for " + node.str());
  }
  co_return *folder;
}

asio::awaitable<void> CheckpointTransfers::give_checkpoint(GuestPtr guest,
                                                           wire::CheckpointAsk request) {
  const fs::path folder = co_await checkpoint_for(guest->node, request.job, request.number);
  std::vector<FileEntry> files = read_manifest(folder).files;
  const FileSum sum = sum_file(folder / "manifest.json");
  files.push_back({"manifest.json", sum.size, sum.sha256});
  link::check_list(files);
  link::say(guest->stream, wire::ContentFiles{files});
  const std::string what = folder.string();
  const link::Source source = link::files_of(folder, files);
  co_await turns_.give_all(guest, what, request.elsewhere, source, false);
}

asio::awaitable<void> CheckpointTransfers::hear_offer(GuestPtr guest, wire::ContentOffer offer) {
  if (!offer.checkpoint) throw Error(ErrorCode::invalid, "no checkpoint is offered");
  const fs::path folder = co_await checkpoint_for(guest->node, offer.job, *offer.checkpoint);
  const std::string what = folder.string();
  co_await turns_.hear_offer(guest, what, offer);
}

}  // namespace dtrain::head
