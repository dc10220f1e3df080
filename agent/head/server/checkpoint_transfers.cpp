#include "agent/head/server/checkpoint_transfers.hpp"

#include <boost/asio/post.hpp>

#include "agent/head/store/checkpoints.hpp"
#include "launcher/core/error.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain::head {

namespace asio = boost::asio;

struct CheckpointTransfers::Fetch {
  wire::ShardAsk ask;
  fs::path folder;
  Nodes::Fetched done;
  std::shared_ptr<link::FolderReceiver> receiver;
};

CheckpointTransfers::CheckpointTransfers(asio::io_context& context, Engine& engine,
                                         NodeConnections& nodes)
    : engine_(engine),
      nodes_(nodes),
      post_([&context, guard = std::weak_ptr<int>(alive_)](std::function<void()> task) {
        asio::post(context, [guard, task = std::move(task)] {
          if (guard.lock()) task();
        });
      }) {
  NodeConnections::BulkHooks hooks;
  hooks.message = [this](const NodeId& node, const wire::BulkMessage& each, std::string& bytes) {
    message(node, each, bytes);
  };
  hooks.opened = [this](const NodeId& node) { opened(node); };
  hooks.gone = [this](const NodeId& node) {
    std::erase_if(senders_, [&](const auto& entry) { return entry.first.first == node; });
  };
  nodes_.on_bulk(std::move(hooks));
}

CheckpointTransfers::~CheckpointTransfers() {
  alive_.reset();
}

std::string CheckpointTransfers::fetch(const NodeId& node, wire::ShardAsk ask,
                                       const fs::path& folder, Nodes::Fetched done) {
  ask.transfer = random_hex(8);
  const auto fetch = std::make_shared<Fetch>(Fetch{ask, folder, std::move(done), nullptr});
  fetches_[{node, ask.transfer}] = fetch;
  nodes_.send_bulk(node, ask);
  return ask.transfer;
}

void CheckpointTransfers::taken(const NodeId& node, const std::string& transfer,
                                const std::optional<Error>& error) {
  nodes_.send_bulk(node, wire::TreeEnd{transfer, error});
}

link::Say CheckpointTransfers::say(const NodeId& node) {
  return [this, node](const wire::BulkMessage& message, std::string bytes) {
    nodes_.send_bulk(node, message, std::move(bytes));
  };
}

void CheckpointTransfers::opened(const NodeId& node) {
  for (const auto& [key, fetch] : fetches_) {
    if (key.first == node) nodes_.send_bulk(node, fetch->ask);
  }
}

void CheckpointTransfers::give_up(const NodeId& node) {
  std::vector<Key> keys;
  for (const auto& [key, fetch] : fetches_) {
    if (key.first == node) keys.push_back(key);
  }
  for (const Key& key : keys) {
    // Not at once: the engine is in the middle of something.
    post_([this, key] {
      finish(key, Error(ErrorCode::unreachable, key.first.str() + " was lost"), false);
    });
  }
}

void CheckpointTransfers::begin(const Key& key, const wire::TreeFiles& files) {
  const auto found = fetches_.find(key);
  if (found == fetches_.end()) return;
  link::receive(found->second->receiver, worker_, post_, found->second->folder, files,
                say(key.first),
                [this, key](std::optional<Error> error) { finish(key, std::move(error), true); });
}

void CheckpointTransfers::finish(const Key& key, std::optional<Error> error, bool tell) {
  const auto found = fetches_.find(key);
  if (found == fetches_.end()) return;
  const std::shared_ptr<Fetch> fetch = found->second;
  fetches_.erase(found);
  if (error) {
    worker_.add([folder = fetch->folder] {
      try {
        remove_tree(folder);
      } catch (const Error&) {  // goes with its attempt
      }
    });
  }
  std::vector<FileEntry> files;
  if (fetch->receiver) files = fetch->receiver->files();
  if (tell && error) taken(key.first, key.second, error);
  fetch->done(std::move(error), std::move(files));
}

// A node wants the checkpoint from which its ranks are to go on.
void CheckpointTransfers::send_checkpoint(const NodeId& node, const wire::CheckpointAsk& request) {
  std::optional<fs::path> folder;
  try {
    if (engine_.knows_share(node, request.job, engine_.newest_attempt(request.job))) {
      folder = engine_.checkpoint(request.job, request.number);
    }
  } catch (const Error&) {
    // No such job.
  }
  if (!folder) {
    const Error error(ErrorCode::not_found, "the head has no such checkpoint for " + node.str());
    nodes_.send_bulk(node, wire::TreeEnd{request.transfer, error});
    return;
  }
  const Key key{node, request.transfer};
  worker_.add([this, key, path = *folder, post = post_] {
    std::vector<FileEntry> files;
    std::optional<Error> failed;
    try {
      files = read_manifest(path).files;
      const FileSum sum = sum_file(path / "manifest.json");
      files.push_back({"manifest.json", sum.size, sum.sha256});
      link::check_list({key.second, files});
    } catch (const std::exception& error) {
      failed = as_error(error);
    }
    post([this, key, path, files, failed] {
      if (failed) {
        nodes_.send_bulk(key.first, wire::TreeEnd{key.second, failed});
        return;
      }
      senders_[key] = link::offer(worker_, post_, key.second, path, files, say(key.first),
                                  [this, key] { senders_.erase(key); });
    });
  });
}

void CheckpointTransfers::message(const NodeId& node, const wire::BulkMessage& message,
                                  std::string& bytes) {
  if (const auto* ask = std::get_if<wire::CheckpointAsk>(&message)) {
    send_checkpoint(node, *ask);
  } else if (const auto* files = std::get_if<wire::TreeFiles>(&message)) {
    begin({node, files->transfer}, *files);
  } else if (const auto* data = std::get_if<wire::TreeData>(&message)) {
    const auto found = fetches_.find({node, data->transfer});
    if (found != fetches_.end() && found->second->receiver) {
      found->second->receiver->take(*data, std::move(bytes));
    }
  } else if (const auto* go = std::get_if<wire::TreeGo>(&message)) {
    const auto found = senders_.find({node, go->transfer});
    if (found != senders_.end()) found->second->go(go->file, go->offset);
  } else if (const auto* credit = std::get_if<wire::TreeCredit>(&message)) {
    const auto found = senders_.find({node, credit->transfer});
    if (found != senders_.end()) found->second->credit(credit->bytes);
  } else if (const auto* end = std::get_if<wire::TreeEnd>(&message)) {
    senders_.erase({node, end->transfer});
    // From the side that sends it is never a good end.
    finish({node, end->transfer},
           end->error.value_or(Error(ErrorCode::failed, "the node ended it in the middle")), false);
  }
}

}  // namespace dtrain::head
