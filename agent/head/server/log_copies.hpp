#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>

#include "agent/head/engine/engine.hpp"
#include "agent/head/server/node_connections.hpp"
#include "launcher/core/kept_log.hpp"
#include "launcher/core/worker.hpp"

// Keeps what nodes on other machines send of their logs, below HeadRoot::mirror(): each byte where
// it was written there, once. All on the io_context's thread; files are written on another.
namespace dtrain::head {

class LogCopies {
 public:
  LogCopies(boost::asio::io_context& context, paths::HeadRoot root, Engine& engine,
            NodeConnections& nodes);
  ~LogCopies();

 private:
  struct Written;
  void message(const NodeId& node, const wire::BulkMessage& message, std::string& bytes);
  void open(const NodeId& node, const wire::LogName& log);
  void append(const NodeId& node, const wire::LogData& data, std::string bytes);
  std::uint64_t limit_of(const wire::LogName& log) const;
  void tell(const wire::LogName& log, const Release& release);
  void report(const NodeId& node, const wire::LogName& log, Written result);
  fs::path path(const NodeId& node, const wire::LogName& log) const;

  boost::asio::io_context& context_;
  paths::HeadRoot root_;
  Engine& engine_;
  NodeConnections& nodes_;
  bool trouble_said_ = false;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Worker writer_;
};

// Puts `bytes`, which stand at `offset` there, behind what the file holds; what it holds already is
// passed over. Returns its size then; less than `offset` when something is missing between, unless
// that was `released` there: then the copy begins at `offset`. Throws Error. For the tests; any
// thread.
std::uint64_t append_copy(const fs::path& path, std::uint64_t offset, std::string_view bytes,
                          bool released = false);

}  // namespace dtrain::head
