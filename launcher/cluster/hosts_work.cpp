#include "launcher/cluster/hosts_work.hpp"

#include <chrono>
#include <utility>

#include "launcher/cluster/machines.hpp"
#include "launcher/cluster/node_up.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/side_by_side.hpp"

namespace dtrain {

HostsWork::HostsWork(const UpRun& run, HeadDesk& desk, std::vector<MachineOutcome> asked)
    : run_(run),
      desk_(desk),
      machines_(std::move(asked)),
      results_(machines_.size()),
      binary_(AgentBinary::load(run.options.agent)),
      stopped_(run.options.access.stop, [this] { pending_.request_stop(); }),
      hang_up_(*run.provider, run.options.access.stop) {
  share_out();
  pool_ = std::jthread([this] {
    side_by_side(machines_.size(), static_cast<std::size_t>(run_.options.max_parallel),
                 [this](std::size_t) {
                   const std::size_t number = ready_.take();
                   results_[number] = work(number);
                   done_.put(number);
                 });
  });
  follower_ = std::jthread([this, asked = machines_] {
    if (run_.options.dry_run) {
      for (std::size_t i = 0; i < asked.size(); ++i) arrived(i, asked[i]);
      return;
    }
    follow_machines(
        *run_.provider, asked, {machine_teller(run_), pending_.get_token()},
        [this](std::size_t number, const MachineOutcome& outcome) { arrived(number, outcome); });
  });
}

HostsWork::~HostsWork() {
  give_up_pending();
}

HostsWork::Done HostsWork::take() {
  const std::size_t number = done_.take();
  return {number, std::move(results_[number])};
}

std::optional<HostsWork::Done> HostsWork::take_if_done() {
  const auto number = done_.take(std::chrono::milliseconds(0), {});
  if (!number) return std::nullopt;
  return Done{*number, std::move(results_[*number])};
}

void HostsWork::share_out() {
  const UpOptions& options = run_.options;
  if (machines_.size() <= kFewHosts || options.seeds == 0 || options.dry_run) return;
  SpreadLimits limits;
  limits.seeds = options.seeds;
  spread_ = std::make_shared<Spread>(limits, options.access.stop, say_of("agent"));
  parcels_ = std::make_shared<Parcels>(run_.folder, limits, options.access.stop, say_of("files"));
}

std::function<void(const std::string&, const std::string&)> HostsWork::say_of(
    const char* what) const {
  return [this, what](const std::string& host, const std::string& words) {
    if (run_.options.detail) run_.options.detail(NodeId(host), what + (" " + words));
  };
}

// In the follower's thread.
void HostsWork::arrived(std::size_t number, const MachineOutcome& outcome) {
  machines_[number] = outcome;
  if (number != 0 && !head_arrived_) {
    held_back_.push_back(number);
    return;
  }
  ready_.put(number);
  if (number != 0) return;
  head_arrived_ = true;
  for (const std::size_t each : std::exchange(held_back_, {})) ready_.put(each);
}

NodeUp HostsWork::work(std::size_t number) {
  const MachineOutcome& made = machines_[number];
  if (made.error || made.machine.state != MachineState::running) return skipped(made);
  NodeTask task;
  task.machine = made.machine;
  task.head = number == 0;
  if (run_.before) task.known = run_.before->id;
  task.spread = spread_;
  task.parcels = parcels_;
  return bring_up_node(run_.spec, run_.options, *run_.provider, binary_, desk_, task);
}

// One that is not there is not looked at; without the head's, nobody waits for it.
NodeUp HostsWork::skipped(const MachineOutcome& made) {
  NodeUp node;
  node.machine = made.machine;
  node.error = made.error;
  if (made.error) {
    run_.options.progress({made.machine.node, NodeProgress::State::failed, "machine",
                           made.error->message(), std::chrono::milliseconds(0)});
  } else {
    const bool is_stopped = made.machine.state == MachineState::stopped;
    node.steps.push_back({"machine", is_stopped ? "start it, and its agents"
                                                : "make it, prepare it and start the agents"});
  }
  if (made.machine.head) {
    desk_.fail(made.error.value_or(Error(ErrorCode::not_found, "there is no cluster yet")));
  }
  return node;
}

}  // namespace dtrain
