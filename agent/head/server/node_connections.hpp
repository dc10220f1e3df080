#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/head/engine/engine.hpp"
#include "agent/head/server/config_file.hpp"
#include "agent/head/server/node_door.hpp"
#include "agent/head/server/pair_tests.hpp"
#include "launcher/wire/frames.hpp"
#include "launcher/wire/node.hpp"

// The connections of the nodes that were let in. All on the io_context's thread.
namespace dtrain::head {

// What is said of a node that lacks a feature.
Error agent_too_old(const std::string& for_what);

class CheckpointTransfers;
class Joins;
class Preparations;

class NodeConnections final : public Nodes {
 public:
  NodeConnections(boost::asio::io_context& context, ConfigFile& config, NodeDoor& door);

  // From now on nodes are let in.
  void serve(Engine& engine);
  bool can_come() const override { return door_.problem().empty(); }

  void start(const NodeId& node, const wire::AttemptSpec& spec,
             const std::map<std::string, std::string>& secrets) override;
  void send(const NodeId& node, const JobId& job, int attempt,
            const wire::AttemptCommand& command) override;
  void forget(const NodeId& node, const JobId& job) override;
  void stage(const NodeId& node, const wire::Stage& wanted) override;
  void unstage(const NodeId& node, const JobId& job, int attempt) override;
  void take_stacks(const NodeId& node, const wire::TakeStacks& wanted) override;
  void prepare(const NodeId& node, const wire::PrepareAttempt& what) override;
  void check_pairs(const JobId& job, int attempt, std::vector<PairMember> members) override;
  std::string fetch_shard(const NodeId& node, wire::ShardAsk ask, const fs::path& folder,
                          Fetched done) override;
  void shard_taken(const NodeId& node, const std::string& transfer,
                   const std::optional<Error>& error) override;
  void give_up(const NodeId& node) override;
  void revoke(const NodeId& node, bool counted, Revoked done) override;
  bool is_let_in(const NodeId& node) const override;

  // Who brings checkpoints to and from nodes; set before serve().
  void use(CheckpointTransfers& transfers) { transfers_ = &transfers; }
  // Whoever has come with a join credential, or is to; set before serve().
  void use(Joins& joins) { joins_ = &joins; }
  // What is told to those that have; set before serve().
  void use(Preparations& preparations) { preparations_ = &preparations; }
  // A node has come or gone, or was given up; set before serve().
  void on_change(std::function<void(const NodeId&)> hear) { on_change_ = std::move(hear); }
  const PairTests& pair_tests() const { return pairs_; }
  const std::string& machine() const { return machine_; }  // as nodes say it of theirs

  // Dropped while it is not connected.
  void tell(const NodeId& node, const wire::HeadMessage& message);
  bool connected(const NodeId& node) const;
  bool has_feature(const NodeId& node, const std::string& feature) const;
  bool shares_machine(const NodeId& node) const;  // it is connected, and the head's machine is its
  // The nodes that can run a command now: both connections are open. Those that share this machine
  // come first.
  bool takes_commands(const NodeId& node) const;
  std::vector<NodeId> nodes_for_commands() const;
  // Some node has joined and not opened its bulk connection yet.
  bool opens_bulk() const;
  void send_bulk(const NodeId& node, const wire::BulkMessage& message, std::string bytes = {});
  // The same to one that has joined and opens its bulk connection in a moment: it goes then. When
  // it leaves before that, everybody hears it as `gone`.
  void ask(const NodeId& node, const wire::BulkMessage& message);

  // Everybody hears every message and takes what is his, its bytes too.
  struct BulkHooks {
    std::function<void(const NodeId&, const wire::BulkMessage&, std::string& bytes)> message;
    std::function<void(const NodeId&)> gone;
    std::function<void(const NodeId&)> opened;
  };
  // A let-in node that has dialled for content; one whose content is to end, being lost or revoked;
  // and one that is to get none from other nodes either, being revoked.
  void on_content(std::function<void(wire::CallerPtr)> take, std::function<void(const NodeId&)> end,
                  std::function<void(const NodeId&)> forbid) {
    take_content_ = std::move(take);
    end_content_ = std::move(end);
    forbid_content_ = std::move(forbid);
  }
  void on_bulk(BulkHooks hooks) { bulk_hooks_.push_back(std::move(hooks)); }

  // Tells every node to end, and those that joined by themselves to clean up, and waits for their
  // connections to close, at most `limit` for the next one. Returns the nodes that were told.
  boost::asio::awaitable<std::vector<NodeId>> shut_down(std::chrono::milliseconds limit);

 private:
  struct Connection {
    wire::FrameStreamPtr control;
    wire::FrameStreamPtr bulk;
    std::vector<wire::BulkMessage> asked;  // for the time when there is one
    bool same_machine = false;
    std::set<std::string> features;
  };

  void speak(const wire::CallerPtr& caller);
  void end_all(const NodeId& node);
  boost::asio::awaitable<void> send_off(NodeId node, Revoked done);
  boost::asio::awaitable<void> until(std::function<bool()> is_so, std::chrono::milliseconds limit);
  boost::asio::awaitable<void> serve_control(wire::AcceptedPeer peer);
  boost::asio::awaitable<void> serve_bulk(wire::AcceptedPeer peer);
  void handle(const NodeId& node, wire::NodeMessage message, const wire::FrameStreamPtr& stream);
  // Its bulk connection is over, or will not be opened: who has asked something there hears it.
  void end_bulk(const NodeId& node, Connection& connection);
  void renew(const NodeId& node, const std::string& request);

  boost::asio::io_context& context_;
  ConfigFile& config_;
  NodeDoor& door_;
  std::string machine_;
  Engine* engine_ = nullptr;
  std::function<void(wire::CallerPtr)> take_content_;
  std::function<void(const NodeId&)> end_content_;
  std::function<void(const NodeId&)> forbid_content_;
  std::vector<BulkHooks> bulk_hooks_;
  CheckpointTransfers* transfers_ = nullptr;
  Joins* joins_ = nullptr;
  std::function<void(const NodeId&)> on_change_;
  Preparations* preparations_ = nullptr;
  PairTests pairs_;
  std::map<NodeId, Connection> connections_;
};

}  // namespace dtrain::head
