#include "agent/node/checkpoint_transfers.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::node {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kListLimit = std::size_t{64} << 20;  // bytes of a shard.json

bool holds(const fs::path& outer, const fs::path& inner) {
  const auto [rest, unused] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return rest == outer.end();
}

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

}  // namespace

ShardFolder look_at_shard(const wire::ShardAsk& request) {
  const std::string shown = printable(request.path, false);
  fs::path path = fs::path(request.path).lexically_normal();
  if (!path.is_absolute()) {
    throw Error(ErrorCode::invalid, "the path of a checkpoint must be absolute");
  }
  if (!path.has_filename()) path = path.parent_path();
  std::error_code failed;
  const fs::path parent = fs::canonical(path.parent_path(), failed);
  if (failed) throw errno_error("cannot look at " + shown, failed.value());
  path = parent / path.filename();
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) throw errno_error("cannot look at " + shown, errno);
  if (!S_ISDIR(status.st_mode)) throw Error(ErrorCode::invalid, shown + " is not a folder");
  if (status.st_uid != ::geteuid()) {
    throw Error(ErrorCode::denied, shown + " belongs to another user");
  }
  for (const std::string& each : request.forbidden) {
    if (!each.empty() && holds(path, fs::weakly_canonical(each))) {
      throw Error(ErrorCode::denied,
                  shown + " cannot be taken as a checkpoint: " + each + " lies in it");
    }
  }
  ShardFolder found;
  found.folder = path;
  found.keep = request.keep;
  if (!request.storage.empty()) {
    // The head has this folder before its eyes too, maybe by another name.
    const fs::path checkpoints = fs::weakly_canonical(fs::path(request.storage) / "checkpoints");
    found.keep = found.keep || holds(checkpoints, path);
    if (holds(checkpoints, path) && !holds(checkpoints / ".tmp", path)) {
      throw Error(ErrorCode::denied, shown + " lies among committed checkpoints");
    }
  }
  const auto listed = read_file_if_there(path / "shard.json", kListLimit);
  if (!listed) {
    found.files = list_files(path);
    if (found.files.empty()) {
      throw Error(ErrorCode::invalid, "the folder of the checkpoint is empty");
    }
    compute_sums(path, found.files);
    return found;
  }
  while_doing("reading " + (path / "shard.json").string(), [&] {
    const nlohmann::json json = wire::parse_json(*listed, "it", kListLimit);
    if (wire::get_string(json, "format") != "dtrain-shard" ||
        wire::get_int(json, "version", 1, INT32_MAX) != 1) {
      throw Error(ErrorCode::invalid, "it is not in a format that this dtrain knows");
    }
    if (wire::get_int(json, "shard", 0, INT32_MAX) != request.shard ||
        wire::get_int(json, "shards", 1, INT32_MAX) != request.shards ||
        wire::get_int(json, "step", 0, INT64_MAX) != request.step) {
      throw Error(ErrorCode::invalid, "it is of another shard or step than was reported");
    }
    found.files = file_entries_from_json(wire::member(json, "files"));
  });
  std::vector<FileEntry> all = found.files;
  all.push_back({"shard.json", listed->size(), {}});
  verify_sizes(path, all, true);
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

// A shard on its way to the head.
struct CheckpointTransfers::Shard {
  wire::ShardAsk request;
  ShardFolder folder;
  std::shared_ptr<link::FolderSender> sender;
};

// A checkpoint on its way from it.
struct CheckpointTransfers::Fetch {
  wire::PrepareAttempt request;
  std::string transfer;
  fs::path place;       // empty: there is none to go on from
  bool wanted = false;  // it is not here, and the head is asked for it
  std::shared_ptr<link::FolderReceiver> receiver;

  fs::path incoming() const { return place.string() + ".incoming-" + transfer; }
};

CheckpointTransfers::CheckpointTransfers(asio::any_io_executor executor, paths::NodeRoot root,
                                         Send send, Prepared prepared)
    : executor_(std::move(executor)),
      root_(std::move(root)),
      send_(std::move(send)),
      prepared_(std::move(prepared)),
      post_([executor = executor_, guard = std::weak_ptr<int>(alive_)](std::function<void()> task) {
        asio::post(executor, [guard, task = std::move(task)] {
          if (guard.lock()) task();
        });
      }) {}

CheckpointTransfers::~CheckpointTransfers() {
  alive_.reset();
}

void CheckpointTransfers::connected(bool is_open) {
  connected_ = is_open;
  shards_.clear();  // the head asks for them again
  if (!is_open) return;
  for (const auto& [transfer, fetch] : fetches_) {
    if (fetch->wanted) ask(*fetch);
  }
}

void CheckpointTransfers::prepare(const wire::PrepareAttempt& request) {
  for (const auto& [transfer, fetch] : fetches_) {
    if (fetch->request.job == request.job && fetch->request.attempt == request.attempt) return;
  }
  forget(request.job);  // what another attempt of it was waiting for
  const auto fetch = std::make_shared<Fetch>();
  fetch->request = request;
  fetch->transfer = random_hex(8);
  if (request.checkpoint) fetch->place = root_.checkpoint(request.job, *request.checkpoint);
  fetches_[fetch->transfer] = fetch;
  worker_.add([this, fetch, post = post_] {
    std::optional<Error> failed;
    bool there = true;
    try {
      look_at_token(fetch->request);
      if (!fetch->place.empty()) {
        // An older one is not wanted any more; a newer one was never committed.
        std::error_code none;
        for (const auto& entry : fs::directory_iterator(fetch->place.parent_path(), none)) {
          if (entry.path() != fetch->place) remove_tree(entry.path());
        }
        there = fs::exists(fetch->place / "manifest.json", none);
      }
    } catch (const std::exception& error) {
      failed = as_error(error);
    }
    post([this, fetch, failed, there] { looked(fetch, failed, there); });
  });
}

void CheckpointTransfers::looked(const std::shared_ptr<Fetch>& fetch, std::optional<Error> error,
                                 bool there) {
  if (!fetches_.contains(fetch->transfer)) return;  // given up meanwhile
  if (error || there) {
    fetches_.erase(fetch->transfer);
    prepared_({fetch->request.job, fetch->request.attempt, std::move(error)});
    return;
  }
  fetch->wanted = true;
  if (connected_) ask(*fetch);
}

void CheckpointTransfers::forget(const JobId& job) {
  for (auto at = fetches_.begin(); at != fetches_.end();) {
    if (at->second->request.job != job) {
      ++at;
      continue;
    }
    const std::shared_ptr<Fetch> fetch = at->second;
    at = fetches_.erase(at);
    if (!fetch->wanted) continue;
    send_(wire::TreeEnd{fetch->transfer, Error(ErrorCode::conflict, "it is not wanted any more")},
          {});
    worker_.add([folder = fetch->incoming()] {
      try {
        remove_tree(folder);
      } catch (const Error& failed) {
        log::warn("a part of a checkpoint stays", {{"why", failed.what()}});
      }
    });
  }
}

void CheckpointTransfers::ask(const Fetch& fetch) {
  send_(wire::CheckpointAsk{fetch.transfer, fetch.request.job, *fetch.request.checkpoint}, {});
}

void CheckpointTransfers::finish(const std::string& transfer, std::optional<Error> error) {
  const auto found = fetches_.find(transfer);
  if (found == fetches_.end()) return;
  const std::shared_ptr<Fetch> fetch = found->second;
  fetches_.erase(found);
  send_(wire::TreeEnd{transfer, error}, {});
  wire::AttemptPrepared answer{fetch->request.job, fetch->request.attempt, std::move(error)};
  if (answer.error) {
    answer.error->while_doing("bringing the checkpoint from the head");
    prepared_(answer);
    return;
  }
  worker_.add([this, fetch, answer, post = post_]() mutable {
    try {
      remove_tree(fetch->place);
      fs::rename(fetch->incoming(), fetch->place);
    } catch (const std::exception& failed) {
      answer.error = as_error(failed);
    }
    post([this, answer] { prepared_(answer); });
  });
}

// The head has listed the files of a checkpoint.
void CheckpointTransfers::begin(const std::string& transfer, const wire::TreeFiles& files) {
  const auto found = fetches_.find(transfer);
  if (found == fetches_.end()) return;
  link::receive(
      found->second->receiver, worker_, post_, found->second->incoming(), files, send_,
      [this, transfer](std::optional<Error> error) { finish(transfer, std::move(error)); });
}

void CheckpointTransfers::send_shard(const wire::ShardAsk& request) {
  const auto shard = std::make_shared<Shard>();
  shard->request = request;
  // Not above what holds the user's own things either.
  if (const char* home = std::getenv("HOME")) shard->request.forbidden.emplace_back(home);
  shard->request.forbidden.push_back(root_.root.string());
  shards_[request.transfer] = shard;
  worker_.add([this, shard, post = post_] {
    std::optional<Error> failed;
    try {
      shard->folder = look_at_shard(shard->request);
      link::check_list({shard->request.transfer, shard->folder.files});
    } catch (const std::exception& error) {
      failed = as_error(error);
    }
    post([this, shard, failed] {
      const std::string& transfer = shard->request.transfer;
      const auto found = shards_.find(transfer);
      if (found == shards_.end() || found->second != shard) return;  // asked for again meanwhile
      if (failed) {
        shards_.erase(found);
        send_(wire::TreeEnd{transfer, failed}, {});
        return;
      }
      shard->sender =
          link::offer(worker_, post_, transfer, shard->folder.folder, shard->folder.files, send_,
                      [this, transfer] { shards_.erase(transfer); });
    });
  });
}

void CheckpointTransfers::message(const wire::BulkMessage& message, std::string bytes) {
  if (const auto* ask_for = std::get_if<wire::ShardAsk>(&message)) {
    send_shard(*ask_for);
  } else if (const auto* files = std::get_if<wire::TreeFiles>(&message)) {
    begin(files->transfer, *files);
  } else if (const auto* data = std::get_if<wire::TreeData>(&message)) {
    const auto found = fetches_.find(data->transfer);
    if (found != fetches_.end() && found->second->receiver) {
      found->second->receiver->take(*data, std::move(bytes));
    }
  } else if (const auto* go = std::get_if<wire::TreeGo>(&message)) {
    const auto found = shards_.find(go->transfer);
    if (found != shards_.end() && found->second->sender) {
      found->second->sender->go(go->file, go->offset);
    }
  } else if (const auto* credit = std::get_if<wire::TreeCredit>(&message)) {
    const auto found = shards_.find(credit->transfer);
    if (found != shards_.end() && found->second->sender) {
      found->second->sender->credit(credit->bytes);
    }
  } else if (const auto* end = std::get_if<wire::TreeEnd>(&message)) {
    if (fetches_.contains(end->transfer)) {
      finish(end->transfer,
             end->error.value_or(Error(ErrorCode::failed, "the head ended it in the middle")));
      return;
    }
    const auto found = shards_.find(end->transfer);
    if (found == shards_.end()) return;
    const std::shared_ptr<Shard> shard = found->second;
    shards_.erase(found);
    if (end->error || shard->folder.keep) return;
    worker_.add([folder = shard->folder.folder] {
      try {
        remove_tree(folder);
      } catch (const Error& error) {
        log::warn("a shard stays", {{"why", error.what()}});
      }
    });
  }
}

}  // namespace dtrain::node
