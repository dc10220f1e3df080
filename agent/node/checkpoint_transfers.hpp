#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "agent/link/folder_transfer.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/worker.hpp"
#include "launcher/wire/node.hpp"

// Checkpoints on their way between this node and a head whose storage it does not see: shards to
// the head, a committed checkpoint from it. All on the executor's thread.
namespace dtrain::node {

class CheckpointTransfers {
 public:
  using Send = std::function<void(const wire::BulkMessage&, std::string bytes)>;
  using Prepared = std::function<void(const wire::AttemptPrepared&)>;

  CheckpointTransfers(boost::asio::any_io_executor executor, paths::NodeRoot root, Send send,
                      Prepared prepared);
  ~CheckpointTransfers();

  // The bulk connection is newly open, or gone.
  void connected(bool is_open);
  // Looks at the storage's token, brings the checkpoint; answers when it is there. A repeat is
  // harmless.
  void prepare(const wire::PrepareAttempt& request);
  // No checkpoint is brought for the job any more.
  void forget(const JobId& job);
  // ShardAsk, and the messages of trees.
  void message(const wire::BulkMessage& message, std::string bytes);

 private:
  struct Fetch;
  struct Shard;
  void ask(const Fetch& fetch);
  void looked(const std::shared_ptr<Fetch>& fetch, std::optional<Error> error, bool there);
  void send_shard(const wire::ShardAsk& request);
  void begin(const std::string& transfer, const wire::TreeFiles& files);
  void finish(const std::string& transfer, std::optional<Error> error);

  boost::asio::any_io_executor executor_;
  paths::NodeRoot root_;
  Send send_;
  Prepared prepared_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  link::Post post_;
  bool connected_ = false;
  std::map<std::string, std::shared_ptr<Shard>> shards_;   // by transfer
  std::map<std::string, std::shared_ptr<Fetch>> fetches_;  // by transfer
  Worker worker_;
};

// The files of a folder that a rank reported as a shard, with their sums: by its shard.json where
// it has one, checked; else computed. Throws Error for what is no folder of this user, holds one of
// `forbidden`, is a committed checkpoint, or has anything but regular files in it. Any thread.
struct ShardFolder {
  fs::path folder;    // links in what is above it resolved
  bool keep = false;  // once it is taken it stays: as was asked, or because it lies in the storage
  std::vector<FileEntry> files;
};
ShardFolder look_at_shard(const wire::ShardAsk& request);

// Before an attempt that writes its shards to the node's own storage: what older ones left there
// goes. Any thread.
void clear_storage(const fs::path& storage, int attempt);

}  // namespace dtrain::node
