#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "launcher/core/ids.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/trash.hpp"
#include "launcher/core/worker.hpp"
#include "launcher/wire/node.hpp"

// The supervisors of this node: started, spoken to, swept up after. A supervisor outlives this
// process, so what is here is found again on disk at each start. All on the executor's thread.
namespace dtrain::node {

class Attempts {
 public:
  // `send` passes a message on to the head; while no head is connected it may drop it, since
  // everything is sent again after head_joined(). Hooks but `send` may be empty.
  struct Hooks {
    std::function<void(wire::NodeMessage)> send;
    // An attempt that is not over is known from now on.
    std::function<void(const std::pair<JobId, int>&)> known;
    // Nothing of it is to be told any more: the head has heard its end, or never will.
    std::function<void(const std::pair<JobId, int>&)> over;
    // Runs `then` once the head has the attempt's logs, at the latest after `limit`, whether it has
    // the whole of them or not: its last event is said behind them.
    std::function<void(const std::pair<JobId, int>&, std::chrono::milliseconds limit,
                       std::function<void(bool whole)> then)>
        after_logs;
    // What the node itself knows better is put into a spec before its supervisor is started.
    std::function<void(wire::AttemptSpec&)> complete;
    // What running() or unheard() say may be another now.
    std::function<void()> changed;
  };
  struct Options {
    // A supervisor that was started here and has not said hello for so long is killed. Whether it
    // is dead is not for the clock to say: its lock tells.
    std::chrono::milliseconds start_limit{60000};
  };
  Attempts(boost::asio::any_io_executor executor, paths::NodeRoot root, std::string agent_binary,
           Hooks hooks, Options options);
  ~Attempts();

  // Finds what is on disk: attempts with a live supervisor, with an exit.json that the head has not
  // acknowledged, or with neither (the supervisor died with this node's processes: swept).
  void recover();

  // For Hello: all attempts that the head must still hear of.
  std::vector<std::pair<JobId, int>> unfinished() const;

  // Those that have processes here, or may have; and whether there is one.
  std::vector<std::pair<JobId, int>> running_ones() const;
  bool running() const;
  // The head must still hear of some attempt, over this connection too.
  bool unheard() const;

  // For Hello: the jobs that have a folder here.
  std::vector<JobId> on_disk() const;

  // The head is there (again): every supervisor is asked anew for what is not acknowledged.
  void head_joined();

  // Writes the attempt's folder and starts its supervisor. A repeat is harmless. What fails is sent
  // as StartFailed.
  void start(const wire::StartAttempt& start);
  void command(const wire::ToSupervisor& command);
  // To every supervisor, also those that are starting; the head need not be there.
  void command_all(const wire::AttemptCommand& command);
  void renew_leases();
  // The job's folder goes, once its attempts are over: those that are not are ended. A head that
  // lost this node and removed the job knows of none; who starts anew meanwhile is told it again.
  void forget(const JobId& job);

 private:
  class Link;
  using Key = std::pair<JobId, int>;
  std::shared_ptr<Link> link(const Key& key);

  boost::asio::any_io_executor executor_;
  paths::NodeRoot root_;
  std::string agent_binary_;
  Hooks hooks_;
  Options options_;
  std::map<Key, std::shared_ptr<Link>> links_;
  Trash trash_;
  Worker files_;  // writes, sweeps and throws away, so that the executor waits for no disk
};

}  // namespace dtrain::node
