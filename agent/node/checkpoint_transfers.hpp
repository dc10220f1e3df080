#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/node/relay.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/files/manifest.hpp"
#include "launcher/wire/frames.hpp"
#include "launcher/wire/node.hpp"

// Checkpoints on their way between this node and a head whose storage it does not see: shards to
// the head, a committed checkpoint from it, over connections and by a thread of their own.
namespace dtrain::node {

class CheckpointTransfers {
 public:
  // `prepared` is called on the executor's thread. A checkpoint that has come is given to others by
  // the relay.
  using Prepared = std::function<void(const wire::AttemptPrepared&)>;
  CheckpointTransfers(boost::asio::any_io_executor executor, paths::NodeRoot root,
                      ClusterId cluster, Relay& relay, Prepared prepared);
  ~CheckpointTransfers();

  // Looks at the storage's token, brings the checkpoint; answers when it is there. A repeat is
  // harmless.
  void prepare(const wire::PrepareAttempt& request);
  // No checkpoint is brought for the job any more, and no shard of it offered.
  void forget(const JobId& job);
  // Offers the shard to the head until it is there, or not wanted. A repeat is harmless.
  void send(const wire::ShardAsk& request);

 private:
  struct Fetch;
  struct Shard;
  void give_up(const JobId& job);
  void offer_next();
  boost::asio::awaitable<void> look(std::shared_ptr<Fetch> fetch);
  boost::asio::awaitable<void> bring(std::shared_ptr<Fetch> fetch, wire::FrameStreamPtr head);
  boost::asio::awaitable<void> offer(std::shared_ptr<Shard> shard);
  boost::asio::awaitable<void> give(std::shared_ptr<Shard> shard, wire::FrameStreamPtr stream);

  boost::asio::any_io_executor executor_;
  paths::NodeRoot root_;
  ClusterId cluster_;
  Relay& relay_;
  Prepared prepared_;
  boost::asio::thread_pool thread_{1};
  // What is under way. The thread's.
  std::map<JobId, std::shared_ptr<Fetch>> fetches_;
  std::map<std::string, std::shared_ptr<Shard>> shards_;  // by transfer
  std::deque<std::shared_ptr<Shard>> waiting_;            // of them
  int offering_ = 0;                                      // of them
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
