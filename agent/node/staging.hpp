#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/node/config.hpp"
#include "agent/node/relay.hpp"
#include "launcher/core/error.hpp"
#include "launcher/wire/node.hpp"

// What must lie on this node before an attempt's ranks start: its own copy of the workdir, and its
// bundle. Each attempt is brought by a thread of its own, so that neither the network nor the disk
// keeps this process from its heartbeats. All calls on the executor's thread.
namespace dtrain::node {

class Staging {
 public:
  // `say` passes a message on to the head; it may be dropped while there is none. What has come
  // from the head is given to others by the relay.
  Staging(boost::asio::any_io_executor executor, paths::NodeRoot root, NodeConfig config,
          Relay& relay, std::function<void(wire::NodeMessage)> say);
  // Gives up what is under way.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Brings an attempt's content, and says how far it is; last that it is ready, or StartFailed.
  void stage(const wire::Stage& wanted);
  // Calls `go` with a start whose workdir, command and library path are this node's: at once, if
  // there is nothing to bring, else when it is here. What fails is said as StartFailed.
  void before_start(const wire::StartAttempt& start,
                    std::function<void(const wire::StartAttempt&)> go);
  // Ends what is under way, without waiting: its thread may be in the middle of much on the disk.
  // What is asked for of the job from then on begins when that thread has ended.
  void give_up(const JobId& job, int attempt);
  // What was brought, or is being brought, for attempts whose start may follow.
  std::set<std::string> trees() const;
  // The same of all attempts of the job; calls `then` once nothing of it is being written.
  void forget(const JobId& job, std::function<void()> then);

 private:
  struct Work;
  using Key = std::pair<JobId, int>;
  std::shared_ptr<Work> begin(const Key& key, const JobContent& content);
  void start(const std::shared_ptr<Work>& work);
  void thread_ended(const std::shared_ptr<Work>& work, const std::optional<Error>& failure);
  void ended(const std::shared_ptr<Work>& work);
  void stop(const std::shared_ptr<Work>& work);
  bool is_ending(const JobId& job) const;
  // At once where nothing of the job is ending.
  void once_ended(const JobId& job, std::function<void()> then);
  wire::StartAttempt placed(const wire::StartAttempt& start) const;

  boost::asio::any_io_executor executor_;
  paths::NodeRoot root_;
  NodeConfig config_;
  Relay& relay_;
  std::function<void(wire::NodeMessage)> say_;
  std::map<Key, std::shared_ptr<Work>> works_;
  std::vector<std::shared_ptr<Work>> ending_;  // told to stop; their threads still run
  std::map<JobId, std::vector<std::function<void()>>> waiting_;  // for those of a job, in order
};

}  // namespace dtrain::node
