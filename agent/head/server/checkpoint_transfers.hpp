#pragma once

#include <boost/asio/io_context.hpp>
#include <map>
#include <memory>
#include <string>

#include "agent/head/engine/engine.hpp"
#include "agent/head/server/node_connections.hpp"
#include "agent/link/folder_transfer.hpp"
#include "launcher/core/worker.hpp"

// Checkpoints on their way between the head's storage and nodes that do not see it: shards to here,
// committed checkpoints from here. All on the io_context's thread.
namespace dtrain::head {

class CheckpointTransfers {
 public:
  CheckpointTransfers(boost::asio::io_context& context, Engine& engine, NodeConnections& nodes);
  ~CheckpointTransfers();

  // As those of Nodes.
  std::string fetch(const NodeId& node, wire::ShardAsk ask, const fs::path& folder,
                    Nodes::Fetched done);
  void taken(const NodeId& node, const std::string& transfer, const std::optional<Error>& error);
  void give_up(const NodeId& node);

 private:
  using Key = std::pair<NodeId, std::string>;
  struct Fetch;
  void opened(const NodeId& node);
  void message(const NodeId& node, const wire::BulkMessage& message, std::string& bytes);
  void begin(const Key& key, const wire::TreeFiles& files);
  void finish(const Key& key, std::optional<Error> error, bool tell);
  void send_checkpoint(const NodeId& node, const wire::CheckpointAsk& request);
  link::Say say(const NodeId& node);

  Engine& engine_;
  NodeConnections& nodes_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  link::Post post_;
  std::map<Key, std::shared_ptr<Fetch>> fetches_;
  std::map<Key, std::shared_ptr<link::FolderSender>> senders_;
  Worker worker_;
};

}  // namespace dtrain::head
