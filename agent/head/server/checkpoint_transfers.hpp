#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/head/engine/engine.hpp"
#include "agent/head/server/guests.hpp"
#include "agent/head/server/node_connections.hpp"
#include "agent/head/server/turns.hpp"

// Checkpoints on their way between the head's storage and nodes that do not see it: shards to here,
// committed checkpoints from here, by turns where nodes are many. The bytes pass through threads of
// their own, at the priority of any other, unlike those of a job's content: ranks wait for them.
namespace dtrain::head {

class CheckpointTransfers {
 public:
  // `engine_context` is where the engine runs, and all is called.
  CheckpointTransfers(boost::asio::io_context& engine_context, Engine& engine,
                      NodeConnections& nodes, Turns& turns);
  ~CheckpointTransfers();
  // Ends the threads; nothing is brought or given from then on.
  void stop();

  // As those of Nodes.
  std::string fetch(const NodeId& node, wire::ShardAsk ask, const fs::path& folder,
                    Nodes::Fetched done);
  void taken(const NodeId& node, const std::string& transfer, const std::optional<Error>& error);
  void give_up(const NodeId& node);

  // A node has a shard, or wants a checkpoint.
  void serve_node(const wire::CallerPtr& caller);
  // Its connections end.
  void end(const NodeId& node) { guests_.end(node); }

 private:
  using Key = std::pair<NodeId, std::string>;  // with the name of the transfer
  // A shard that is awaited.
  struct Fetch {
    wire::ShardAsk ask;
    fs::path folder;
    Nodes::Fetched done;
    bool arrived = false;  // and `done` knows
    bool damaged = false;  // once
    GuestPtr guest;        // from which it comes, or came; null: from none
  };
  std::vector<Key> fetches_of(const NodeId& node) const;
  void ask_node(const Key& key);
  std::optional<fs::path> offered(const GuestPtr& guest, const std::string& transfer);
  void brought(const GuestPtr& guest, const fs::path& folder, wire::ShardOffer offer,
               const std::optional<Error>& error, bool lost);
  void finish(const Key& key, const Error& error);
  boost::asio::awaitable<void> serve(GuestPtr guest);
  boost::asio::awaitable<void> bring_shard(GuestPtr guest, wire::ShardOffer offer);
  // Its folder, for a node of the job's newest attempt.
  boost::asio::awaitable<fs::path> checkpoint_for(NodeId node, JobId job, int number);
  boost::asio::awaitable<void> give_checkpoint(GuestPtr guest, wire::CheckpointAsk request);
  boost::asio::awaitable<void> hear_offer(GuestPtr guest, wire::ContentOffer offer);

  boost::asio::io_context& engine_context_;
  Engine& engine_;
  NodeConnections& nodes_;
  Turns& turns_;
  boost::asio::thread_pool threads_;  // outlives what holds its connections
  std::map<Key, Fetch> fetches_;
  Guests guests_;
};

}  // namespace dtrain::head
