#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "launcher/cluster/hang_up.hpp"
#include "launcher/cluster/head_desk.hpp"
#include "launcher/cluster/parcels.hpp"
#include "launcher/cluster/up_way.hpp"
#include "launcher/cluster/work_queue.hpp"
#include "launcher/remote/agent_session.hpp"

namespace dtrain {

// The machines of one `up` at work, each from when it runs, at most `max_parallel` at once; what is
// pending holds back none of them. The head's is begun first, for the others wait for it at the
// desk. A dry run follows no machine, and looks at those that run.
class HostsWork {
 public:
  // `asked`: the head first; as told by ask_for_machines(). What is given must outlive it.
  HostsWork(const UpRun& run, HeadDesk& desk, std::vector<MachineOutcome> asked);
  // No more waiting for what is pending; what is at work comes to its end.
  ~HostsWork();
  HostsWork(const HostsWork&) = delete;
  HostsWork& operator=(const HostsWork&) = delete;

  struct Done {
    std::size_t number;  // as in `asked`
    NodeUp node;
  };
  // Each machine is done once; waits for the next.
  Done take();
  // Absent: none is done now.
  std::optional<Done> take_if_done();
  void give_up_pending() { pending_.request_stop(); }

 private:
  void share_out();
  void arrived(std::size_t number, const MachineOutcome& outcome);
  NodeUp work(std::size_t number);
  NodeUp skipped(const MachineOutcome& made);
  std::function<void(const std::string&, const std::string&)> say_of(const char* what) const;

  const UpRun& run_;
  HeadDesk& desk_;
  // Of each machine, written before its number is put.
  std::vector<MachineOutcome> machines_;
  std::vector<NodeUp> results_;
  const std::shared_ptr<const AgentBinary> binary_;
  std::shared_ptr<Spread> spread_;
  std::shared_ptr<Parcels> parcels_;
  bool head_arrived_ = false;
  std::vector<std::size_t> held_back_;  // until it has
  WorkQueue ready_;
  WorkQueue done_;
  std::stop_source pending_;
  std::stop_callback<std::function<void()>> stopped_;
  HangUp hang_up_;
  std::jthread pool_;
  std::jthread follower_;  // ends first: the pool waits for what it tells
};

}  // namespace dtrain
