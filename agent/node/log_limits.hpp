#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "launcher/core/paths.hpp"
#include "launcher/core/worker.hpp"
#include "launcher/wire/node.hpp"

// Holds what the ranks of this node wrote to their jobs' log_limit: the oldest part of each stream
// is released (launcher/core/kept_log.hpp), where the head has a copy of it or reads the files here
// itself. Their writer, the supervisor, knows nothing of it. All on the executor's thread; files
// are looked at on a thread of its own, twice a second while an attempt has a limit.
namespace dtrain::node {

class LogLimits {
 public:
  using Key = std::pair<JobId, int>;
  using Taken = std::map<std::string, std::uint64_t>;
  struct Hooks {
    // Of each log of the attempt what the head has, by file. Absent: it reads the files here.
    std::function<std::optional<Taken>(const Key&)> taken;
    // Passes a message on to the head; it may be dropped while there is none.
    std::function<void(const wire::LogsReleased&)> say;
  };
  LogLimits(boost::asio::any_io_executor executor, paths::NodeRoot root, Hooks hooks);
  ~LogLimits();

  // Nothing is released before the head has been there once, and said whether it has copies.
  void head_joined();
  // This attempt's logs are looked at from now on.
  void follow(const Key& key);
  // Nothing more will be written. When the head has the `whole` of it, they are looked at once
  // more.
  void end(const Key& key, bool whole);
  void forget(const JobId& job);

 private:
  struct Rule {  // of the attempt's spec
    std::uint64_t limit = 0;
    int first_rank = 0;
    int nproc = 0;
  };
  struct Attempt {
    std::optional<Rule> rule;  // absent: not read yet
    bool ended = false;
    bool released = false;  // something was, now or by an earlier agent
    std::string error;      // why nothing can be
    bool said = false;      // that, over this connection
  };
  struct Look;  // what the thread is to do, and what came of it

  void wake();
  void look();
  void looked(const Look& look);

  boost::asio::any_io_executor executor_;
  paths::NodeRoot root_;
  Hooks hooks_;
  boost::asio::steady_timer timer_;
  std::map<Key, Attempt> attempts_;
  bool joined_ = false;
  bool looking_ = false;
  bool trouble_said_ = false;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Worker worker_;
};

}  // namespace dtrain::node
