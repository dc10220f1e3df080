#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "agent/head/engine.hpp"
#include "agent/head/setup.hpp"
#include "launcher/wire/frames.hpp"
#include "launcher/wire/node.hpp"

// The nodes' connections: the one TLS port of a cluster. All on the io_context's thread.
namespace dtrain::head {

class NodeSessions final : public Nodes {
 public:
  NodeSessions(boost::asio::io_context& context, paths::HeadRoot root, HeadConfig config);

  // Opens the port and writes it to head.json. Throws Error(exhausted) when none is free.
  void listen();
  // From now on nodes are let in.
  void serve(Engine& engine);
  int port() const { return config_.port; }

  void start(const NodeId& node, const wire::AttemptSpec& spec,
             const std::map<std::string, std::string>& secrets) override;
  void send(const NodeId& node, const JobId& job, int attempt,
            const wire::AttemptCommand& command) override;
  void forget(const NodeId& node, const JobId& job) override;
  void stage(const NodeId& node, const wire::Stage& wanted) override;
  void unstage(const NodeId& node, const JobId& job, int attempt) override;

  bool connected(const NodeId& node) const;
  // The nodes that can run a command now: both connections are open. Those that share this machine
  // come first.
  bool takes_commands(const NodeId& node) const;
  std::vector<NodeId> nodes_for_commands() const;
  void send_bulk(const NodeId& node, const wire::BulkMessage& message, std::string bytes = {});

  struct BulkHooks {
    std::function<void(const NodeId&, const wire::BulkMessage&, std::string bytes)> message;
    std::function<void(const NodeId&)> gone;
  };
  // A let-in node that has dialled for content.
  void on_content(std::function<void(wire::CallerPtr)> take) { take_content_ = std::move(take); }
  void on_bulk(BulkHooks hooks) { bulk_hooks_ = std::move(hooks); }

  // Tells every node to end and waits for their connections to close, at most `limit`.
  // Returns the nodes that were told.
  boost::asio::awaitable<std::vector<NodeId>> shut_down(std::chrono::milliseconds limit);

 private:
  struct Session {
    wire::FrameStreamPtr control;
    wire::FrameStreamPtr bulk;
    bool same_machine = false;
    bool takes_content = false;
  };

  boost::asio::awaitable<void> accept_loop();
  boost::asio::awaitable<void> welcome(boost::asio::ip::tcp::socket socket);
  boost::asio::awaitable<void> serve_control(wire::AcceptedPeer peer);
  boost::asio::awaitable<void> serve_bulk(wire::AcceptedPeer peer);
  void take(const NodeId& node, wire::NodeMessage message, const wire::FrameStreamPtr& stream);
  void tell(const NodeId& node, const wire::HeadMessage& message);

  boost::asio::io_context& context_;
  paths::HeadRoot root_;
  HeadConfig config_;
  std::string machine_;
  boost::asio::ip::tcp::acceptor acceptor_;
  Engine* engine_ = nullptr;
  BulkHooks bulk_hooks_;
  std::function<void(wire::CallerPtr)> take_content_;
  std::map<NodeId, Session> sessions_;
};

}  // namespace dtrain::head
