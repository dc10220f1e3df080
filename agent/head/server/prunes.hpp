#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <string>

#include "agent/head/engine/engine.hpp"
#include "agent/head/server/content_server.hpp"
#include "agent/head/server/node_connections.hpp"
#include "agent/head/server/preparations.hpp"
#include "launcher/core/worker.hpp"

// Gives disk back on the head and on all nodes: content of jobs that no job needs any more. By the
// clock, within `content_cache_size`; or because somebody asks (`dtrain prune`), then all of it.
// All on the io_context's thread, but for the work on files.
namespace dtrain::head {

class Prunes {
 public:
  Prunes(boost::asio::io_context& context, Engine& engine, NodeConnections& nodes,
         ContentServer& contents, const Preparations& preparations, const paths::HeadRoot& root);

  // By the clock, from now on.
  void serve();
  // Answers {"dry_run", "bytes", "nodes": [{"node", "items": [{"kind", "count", "bytes"}…],
  // "error"}…]}, the head first; a node that is away or says nothing within kPatience has an error.
  void prune(bool dry_run, Engine::Answer done);

  static constexpr std::chrono::seconds kPatience{60};

 private:
  struct Round;
  void round(bool asked, bool dry_run, Engine::Answer done);
  void answered(const std::string& request, const std::string& who, wire::Collected answer);
  void finish(const std::string& request);
  void by_the_clock(std::chrono::minutes after);

  boost::asio::io_context& context_;
  Engine& engine_;
  NodeConnections& nodes_;
  ContentServer& contents_;
  const Preparations& preparations_;
  fs::path store_;
  boost::asio::steady_timer clock_;
  std::map<std::string, std::shared_ptr<Round>> rounds_;  // by request
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Worker worker_;
};

}  // namespace dtrain::head
