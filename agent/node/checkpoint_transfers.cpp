#include "agent/node/checkpoint_transfers.hpp"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <cstdio>
#include <cstdlib>

#include "agent/link/content_exchange.hpp"
#include "agent/node/fetch.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/shard.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::node {

namespace asio = boost::asio;

namespace {

constexpr const char* kPath = "/v1/node/checkpoint";
constexpr int kShardsAtOnce = 2;  // one is made safe by the head while the next one comes

void look_at_token(const wire::PrepareAttempt& request) {
  if (request.token_file.empty()) return;
  std::optional<std::string> found;
  try {
    found = read_file_if_there(request.token_file, 4096);
  } catch (const Error&) {
    // Not readable is as good as not there.
  }
  if (found == request.token) return;
  const fs::path storage = fs::path(request.token_file).parent_path().parent_path().parent_path();
  throw Error(ErrorCode::invalid,
              "storage_path is not the same folder here as on the head: what "
              "the head wrote below " +
                  storage.string() + " is not seen")
      .with_hint(
          "storage_path must be a folder that all nodes share; without it the head's own is "
          "used");
}

// As it was committed, by its list and the sizes of its files: a machine that lost its power may
// have kept less of it.
bool is_whole(const fs::path& checkpoint) {
  try {
    const auto text = read_file_if_there(checkpoint / "manifest.json", kShardListLimit);
    if (!text) return false;
    const nlohmann::json json = wire::parse_json(*text, "its manifest.json", kShardListLimit);
    verify_sizes(checkpoint, file_entries_from_json(wire::member(json, "files")));
    return true;
  } catch (const Error& error) {
    log::warn("a checkpoint here is not whole and is brought again",
              {{"checkpoint", checkpoint.string()}, {"why", error.what()}});
    return false;
  }
}

void remove_or_warn(const fs::path& path, const std::string& what) {
  try {
    remove_tree(path);
  } catch (const Error& error) {
    log::warn(what, {{"why", error.what()}});
  }
}

}  // namespace

ShardFolder look_at_shard(const wire::ShardAsk& request) {
  const fs::path path = reported_folder(request.path);
  refuse_around(path, {request.forbidden.begin(), request.forbidden.end()});
  ShardFolder found;
  found.folder = path;
  found.keep = request.keep;
  if (!request.storage.empty()) {
    // The head has this folder before its eyes too, maybe by another name.
    const fs::path checkpoints = fs::weakly_canonical(fs::path(request.storage) / "checkpoints");
    found.keep = found.keep || holds(checkpoints, path);
    if (holds(checkpoints, path) && !holds(checkpoints / ".tmp", path)) {
      throw Error(ErrorCode::denied, printable_path(path) + " lies among committed checkpoints");
    }
  }
  if (fs::exists(path / "shard.json")) {
    found.files = read_shard(path, request.shard, request.shards, request.step);
    verify_shard(path, found.files);
    return found;
  }
  found.files = list_files(path);
  if (found.files.empty()) {
    throw Error(ErrorCode::invalid, "the folder of the checkpoint is empty");
  }
  compute_sums(path, found.files);
  return found;
}

void clear_storage(const fs::path& storage, int attempt) {
  const fs::path temporary = storage / "checkpoints" / ".tmp";
  make_folders(temporary);
  for (const fs::directory_entry& entry : fs::directory_iterator(temporary)) {
    int of = 0;
    const std::string name = entry.path().filename().string();
    if (std::sscanf(name.c_str(), "attempt-%d-", &of) == 1 && of < attempt) {
      remove_tree(entry.path());
    }
  }
}

// A checkpoint on its way from the head.
struct CheckpointTransfers::Fetch {
  wire::PrepareAttempt request;
  fs::path place;  // empty: there is none to go on from
  bool stop = false;
  wire::FrameStreamPtr head = nullptr;  // while it is asked
  std::vector<FileEntry> files = {};    // as the head listed them, whoever gives them

  void check() const {
    if (stop) throw Error(ErrorCode::conflict, "it is not wanted any more");
  }
};

// A shard on its way to it.
struct CheckpointTransfers::Shard {
  wire::ShardAsk request;
  ShardFolder found;
  wire::ShardOffer offer;
  bool refused = false;
  bool stop = false;
};

CheckpointTransfers::CheckpointTransfers(asio::any_io_executor executor, paths::NodeRoot root,
                                         ClusterId cluster, Relay& relay, Prepared prepared)
    : executor_(std::move(executor)),
      root_(std::move(root)),
      cluster_(std::move(cluster)),
      relay_(relay),
      prepared_(std::move(prepared)) {}

CheckpointTransfers::~CheckpointTransfers() {
  thread_.stop();
  thread_.join();
}

void CheckpointTransfers::prepare(const wire::PrepareAttempt& request) {
  asio::post(thread_, [this, request] {
    const auto found = fetches_.find(request.job);
    if (found != fetches_.end() && found->second->request.attempt == request.attempt) return;
    give_up(request.job);  // what another attempt of it was waiting for
    const auto fetch = std::make_shared<Fetch>(Fetch{request, {}, false});
    if (request.checkpoint) fetch->place = root_.checkpoint(request.job, *request.checkpoint);
    fetches_[request.job] = fetch;
    asio::co_spawn(thread_, look(fetch), asio::detached);
  });
}

void CheckpointTransfers::forget(const JobId& job) {
  asio::post(thread_, [this, job] {
    give_up(job);
    for (const auto& [transfer, shard] : shards_) {
      if (shard->request.job == job) shard->stop = true;
    }
  });
}

void CheckpointTransfers::give_up(const JobId& job) {
  const auto found = fetches_.find(job);
  if (found == fetches_.end()) return;
  const std::shared_ptr<Fetch> fetch = found->second;
  fetches_.erase(found);
  fetch->stop = true;
  if (fetch->head) fetch->head->abort();
  if (fetch->place.empty()) return;
  remove_or_warn(link::part_of(fetch->place), "a part of a checkpoint stays");
}

asio::awaitable<void> CheckpointTransfers::look(std::shared_ptr<Fetch> fetch) {
  const fs::path& place = fetch->place;
  std::optional<Error> failed;
  bool dials = false;
  try {
    look_at_token(fetch->request);
    // An older one is not wanted any more; a newer one was never committed.
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(place.parent_path(), none)) {
      if (entry.path() != place && entry.path() != link::part_of(place)) remove_tree(entry.path());
    }
    dials = !place.empty() && !is_whole(place);
    const std::function<void()> check = [fetch] { fetch->check(); };
    const Talk talk = [this, fetch](wire::FrameStreamPtr stream) {
      return bring(fetch, std::move(stream));
    };
    if (dials) {
      co_await over_connections(root_, kPath, check, talk, connection_broke);
      fsync_tree(place, fetch->files);
      fsync_folder(place.parent_path());
    }
  } catch (const std::exception& error) {
    failed = as_error(error);
    if (dials) failed->while_doing("bringing the checkpoint from the head");
  }
  if (fetch->stop) co_return;
  const wire::PrepareAttempt& request = fetch->request;
  fetches_.erase(request.job);
  asio::post(executor_, [prepared = prepared_,
                         answer = wire::AttemptPrepared{request.job, request.attempt, failed}] {
    prepared(answer);
  });
}

asio::awaitable<void> CheckpointTransfers::bring(std::shared_ptr<Fetch> fetch,
                                                 wire::FrameStreamPtr head) {
  const wire::PrepareAttempt& request = fetch->request;
  fetch->head = head;
  const std::shared_ptr<void> at_end(nullptr, [fetch](void*) { fetch->head.reset(); });
  link::say(head, wire::CheckpointAsk{request.job, *request.checkpoint, true});
  const wire::ContentMessage message = co_await link::hear(head);
  const auto* listed = std::get_if<wire::ContentFiles>(&message);
  if (listed == nullptr) throw Error(ErrorCode::invalid, "the head did not list the checkpoint");
  fetch->check();
  fetch->files = listed->files;
  const std::vector<FileEntry>& files = fetch->files;
  const std::function<void()> check = [fetch] { fetch->check(); };
  const link::Progress progress = [fetch](std::uint64_t) { fetch->check(); };
  const Bring bring_parts = [&](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    const link::Elsewhere nowhere_else;
    co_await link::bring_parts(stream, fetch->place, files, progress, nowhere_else);
  };
  const link::Elsewhere elsewhere = [&](wire::ContentElsewhere giver) {
    return bring_from(root_, cluster_, std::move(giver), check, bring_parts);
  };
  const bool by_turn = co_await link::bring_folder(head, fetch->place, files, progress, elsewhere);
  if (!by_turn) co_return;
  const bool wanted = co_await is_wanted(head);
  if (!wanted) co_return;
  relay_.offer(kPath, {request.job, request.attempt, request.checkpoint, 0, {}},
               [files, place = fetch->place] { return link::files_of(place, files); });
}

void CheckpointTransfers::send(const wire::ShardAsk& request) {
  asio::post(thread_, [this, request] {
    const auto shard = std::make_shared<Shard>();
    if (!shards_.emplace(request.transfer, shard).second) return;
    shard->request = request;
    // Not above what holds the user's own things either.
    if (const char* home = std::getenv("HOME")) shard->request.forbidden.emplace_back(home);
    shard->request.forbidden.push_back(root_.root.string());
    waiting_.push_back(shard);
    offer_next();
  });
}

void CheckpointTransfers::offer_next() {
  while (offering_ < kShardsAtOnce && !waiting_.empty()) {
    ++offering_;
    // Out of the line first: it may be over at once, and then comes here.
    const std::shared_ptr<Shard> next = waiting_.front();
    waiting_.pop_front();
    asio::co_spawn(thread_, offer(next), asio::detached);
  }
}

asio::awaitable<void> CheckpointTransfers::offer(std::shared_ptr<Shard> shard) {
  shard->offer.transfer = shard->request.transfer;
  const std::function<void()> check = [shard] {
    if (shard->stop) throw Error(ErrorCode::conflict, "its job is forgotten");
  };
  // The head waits for it: whatever else happens here, it is offered again.
  const auto worth_another = [shard](const Error&) { return !shard->refused; };
  try {
    check();
    try {
      shard->found = look_at_shard(shard->request);
      link::check_list(shard->found.files);
      shard->offer.files = shard->found.files;
    } catch (const std::exception& error) {
      shard->offer.error = as_error(error);
    }
    const Talk talk = [this, shard](wire::FrameStreamPtr stream) {
      return give(shard, std::move(stream));
    };
    co_await over_connections(root_, kPath, check, talk, worth_another);
    if (!shard->found.keep) remove_or_warn(shard->found.folder, "a shard stays");
  } catch (const std::exception& error) {
    log::info("a shard is not taken", {{"path", shard->request.path}, {"why", error.what()}});
  }
  shards_.erase(shard->request.transfer);
  --offering_;
  offer_next();
}

// Returns when the head has it.
asio::awaitable<void> CheckpointTransfers::give(std::shared_ptr<Shard> shard,
                                                wire::FrameStreamPtr stream) {
  link::say(stream, shard->offer);
  const link::Source source = link::files_of(shard->found.folder, shard->found.files);
  while (true) {
    wire::ContentMessage message;
    try {
      message = co_await link::hear(stream);
    } catch (const link::Refusal& refusal) {
      shard->refused = !connection_broke(refusal);
      throw;
    }
    const auto* want = std::get_if<wire::ContentWant>(&message);
    if (std::holds_alternative<wire::ContentEnd>(message) && !shard->offer.error) co_return;
    if (want == nullptr) throw Error(ErrorCode::invalid, "an unexpected message of content");
    try {
      co_await link::give(stream, *want, source, false);
    } catch (const std::exception& failed) {
      const Error error = as_error(failed);
      if (error.code() == ErrorCode::unreachable) throw;
      // It is not as it was: the next connection says so.
      shard->offer = {shard->request.transfer, {}, error};
      throw Error(ErrorCode::unreachable, error.what());
    }
  }
}

}  // namespace dtrain::node
