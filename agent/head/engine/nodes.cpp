#include <algorithm>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"

// Nodes come, go silent, come back; supervisors are lost.
namespace dtrain::head {
namespace {

std::string was_lost(const NodeId& node, const std::string& why) {
  return node.str() + " was lost: " + why;
}

}  // namespace

void Engine::Impl::commit_node(Tx tx) {
  const bool awaited = !tx.when_durable.empty();
  store->commit(
      std::move(tx.changes), awaited ? Urgency::now : Urgency::soon, OnFailure::retry,
      !awaited ? nullptr : when_stored("a node's change", [tasks = std::move(tx.when_durable)] {
        for (const auto& task : tasks) task();
      }));
}

void Engine::Impl::set_node(Tx& tx, Node& node, NodeEvent event, const std::string& reason) {
  const std::optional<NodeState> state = next(node.row.state, event);
  if (!state) return;
  if (*state != node.row.state) {
    log::info("node",
              {{"node", node.row.node.str()}, {"state", to_string(*state)}, {"reason", reason}});
  }
  node.row.state = *state;
  node.row.reason = reason;
  if (event == NodeEvent::drain) node.row.drain = reason;
  if (event == NodeEvent::resume || event == NodeEvent::leave || event == NodeEvent::remove) {
    node.row.drain.clear();
  }
  tx.changes.nodes.push_back(node.row);
}

// It is here, and gets nothing new if that was so before it was lost.
void Engine::Impl::set_joined(Tx& tx, Node& node) {
  set_node(tx, node, NodeEvent::join, drains(node) ? node.row.reason : "");
  if (!node.row.drain.empty() && !drains(node)) {
    set_node(tx, node, NodeEvent::drain, std::string(node.row.drain));
  }
}

const JobId* Engine::Impl::unread_on(const Node& node) const {
  for (const auto& [job, attempt] : node.leftovers) {
    if (unread.contains(job)) return &job;
  }
  return nullptr;
}

void Engine::Impl::stop_leftover(const NodeId& node, const JobId& job, int attempt) {
  if (unread.contains(job)) return;
  wire::StopRanks stop;
  stop.grace = std::chrono::seconds(0);
  stop.reason = "attempt " + std::to_string(attempt) + " of " + job.str() + " was given up";
  nodes_out.send(node, job, attempt, stop);
}

void Engine::Impl::joined(const NodeInfo& info) {
  Node& node = nodes[info.node];
  // An older agent does not say when the machine's first process began.
  const bool other_boot = !node.row.boot_id.empty() && node.row.boot_id != info.boot_id &&
                          !info.boot_id.starts_with(node.row.boot_id + " ");
  const Monotonic last_heard = node.heard;
  node.row.node = info.node;
  node.row.address = info.address;
  node.head_address = info.head_address;
  node.interfaces = info.interfaces;
  node.features = {info.features.begin(), info.features.end()};
  if (other_boot) {
    node.clock = {};
    node.clock_epoch.reset();
  }
  node.row.boot_id = info.boot_id;
  node.row.machine = info.machine;
  node.row.version = info.version;
  node.row.root = info.root;
  node.row.log = info.log;
  node.row.cpus = info.cpus;
  node.row.gpus = info.gpus;
  node.row.memory = info.memory;
  node.row.joined = info.joined;
  node.row.type = info.type;
  node.glibc = info.glibc;
  node.slurm = info.slurm;
  node.connected = true;
  node.leaves = printable(info.leaving, false);
  node.preparing = info.preparing;
  node.unprepared = !info.preparing.empty();
  node.heard = clock.now();
  Tx tx;
  set_joined(tx, node);
  commit_node(std::move(tx));

  note_folders(info.node, info.jobs);
  for (const JobId& id : info.jobs) {
    if (Job* job = find(id); job != nullptr && job->spec.spares > 0) {
      job->spared.insert(info.node);
      job->unfit.erase(info.node);
    }
  }
  // One that leaves may dial once more, to say so again.
  if (info.leaving.empty()) {
    node.ended.clear();
    node.word.clear();
    node.taken_back = false;
  }
  // What lives there and should not. Where the end is known, only its acknowledgement is missing; a
  // forgotten job may run on where it was lost, and is cleared when it has ended.
  node.leftovers.clear();
  for (const auto& [id, number] : info.attempts) {
    Job* job = find(id);
    Attempt* attempt = job == nullptr ? nullptr : job->find_attempt(number);
    const Share* share = attempt == nullptr ? nullptr : attempt->share(info.node);
    if (share != nullptr && share->row.state == ShareState::finished) continue;
    if (share != nullptr && share->live() && attempt == job->live_attempt()) continue;
    if (job != nullptr) job->named = std::max(job->named, number);
    const bool holds_node =
        job != nullptr || forgotten.contains(id) || restored_lately() || unread.contains(id);
    if (holds_node) node.leftovers.insert({id, number});
    stop_leftover(info.node, id, number);
  }
  clear_forgotten(info.node, info.jobs);

  for (const JobId& id : jobs_on(info.node)) {
    Job* job = find(id);
    Attempt* attempt = job == nullptr ? nullptr : job->live_attempt();
    if (attempt == nullptr || !attempt->durable) continue;
    Share* share = attempt->share(info.node);
    if (share == nullptr || !share->live()) continue;
    const bool there = std::find(info.attempts.begin(), info.attempts.end(),
                                 std::pair(id, attempt->row.attempt)) != info.attempts.end();
    if (other_boot && share->row.state == ShareState::running) share->machine_gone = last_heard;
    if (there) {
      share->start_sent = share->met = true;
      if (attempt->ending()) send_stop(*job, *attempt, *share);
      // Who awaits its name, or that all files are in place.
      if (job->spec.launcher == Launcher::srun || job->row.state == JobState::staging) {
        advance(*job, *attempt);
      }
    } else if (is_of_copy(id) && !share->met) {
      lose_end(*job, *attempt, *share);
    } else if (share->row.state == ShareState::waiting) {
      share->start_sent = false;
      share->prepare_sent = false;
      share->prepared = false;
      if (!attempt->pairs_passed) attempt->pairs_asked = false;
      share->stage_sent = false;
      advance(*job, *attempt);
    } else {
      share_broken(info.node, id, attempt->row.attempt,
                   "its supervisor on " + info.node.str() + " is gone", Broken::supervisor_gone,
                   {});
    }
  }
  for (const auto& [id, job] : live) look_at_lease(*job);
  schedule();
  rearm();
}

// Where nothing of its last attempt may still run on a node that was given up, it waits for no
// lease.
void Engine::Impl::look_at_lease(Job& job) {
  if (!job.not_before || job.attempts.empty()) return;
  const Attempt& last = job.attempts.back();
  const bool may_run = std::any_of(last.shares.begin(), last.shares.end(), [&](const Share& share) {
    if (share.row.state != ShareState::lost) return false;
    const auto node = nodes.find(share.row.node);
    return node == nodes.end() || node->second.row.state == NodeState::gone ||
           node->second.leftovers.contains({job.row.id, last.row.attempt});
  });
  if (!may_run) job.not_before.reset();
}

void Engine::Impl::preparing(const NodeId& id, const std::string& what, bool waits) {
  const auto found = nodes.find(id);
  if (found == nodes.end()) return;
  Node& node = found->second;
  node.preparing = what;
  if (node.unprepared == waits) return;
  node.unprepared = waits;
  schedule();
}

void Engine::Impl::heard(const NodeId& id) {
  const auto found = nodes.find(id);
  if (found == nodes.end()) return;
  Node& node = found->second;
  node.heard = clock.now();
  if (node.row.state != NodeState::lost || !node.connected) return;
  // It was only slow, and the connection held: what was given up there is ended.
  Tx tx;
  set_joined(tx, node);
  commit_node(std::move(tx));
  const std::set<std::pair<JobId, int>> leftovers = node.leftovers;
  for (const auto& [job, attempt] : leftovers) stop_leftover(id, job, attempt);
  schedule();
  rearm();
}

void Engine::Impl::gone(const NodeId& id) {
  const auto found = nodes.find(id);
  if (found == nodes.end() || !found->second.connected) return;
  Node& node = found->second;
  node.connected = false;
  Tx tx;
  set_node(tx, node, NodeEvent::disconnect, "its connection closed; waiting for it to come back");
  commit_node(std::move(tx));
  // What was asked of it before a start is asked again when it is back.
  for (const JobId& job_id : jobs_on(id)) {
    Attempt& attempt = *jobs.at(job_id).live_attempt();
    attempt.share(id)->prepare_sent = false;
    if (!attempt.pairs_passed) attempt.pairs_asked = false;
  }
  spare_gone(id);
  schedule();
  rearm();
}

void Engine::Impl::lose_node(Node& node) {
  const NodeId id = node.row.node;
  std::string silence = "not heard of for " + human_duration(clock.now() - node.heard);
  if (!node.leaves.empty()) silence += ", after " + node.leaves;
  Tx node_tx;
  set_node(node_tx, node, NodeEvent::silence, silence);
  commit_node(std::move(node_tx));
  log::warn("a node is lost", {{"node", id.str()}, {"why", silence}});

  nodes_out.give_up(id);
  lose_shares(node, was_lost(id, silence));
}

void Engine::Impl::lose_ranks(Tx& tx, Attempt& attempt, const Share& share) {
  for (int i = 0; i < share.row.nproc; ++i) {
    const auto rank = attempt.ranks.find(share.row.first_rank + i);
    if (rank == attempt.ranks.end()) continue;
    if (const auto lost = next(rank->second.state, RankEvent::lose)) {
      rank->second.state = *lost;
      tx.changes.ranks.push_back(rank->second);
    }
  }
}

void Engine::Impl::lose_shares(Node& node, const std::string& reason) {
  const NodeId id = node.row.node;
  for (const JobId& job_id : jobs_on(id)) {
    Job* job = find(job_id);
    Attempt* attempt = job == nullptr ? nullptr : job->live_attempt();
    // One that is not durable yet loses it when it is.
    Share* share = attempt == nullptr || !attempt->durable ? nullptr : attempt->share(id);
    if (share != nullptr && share->live()) lose_share_on(node, *job, *attempt, *share, reason);
  }
}

void Engine::Impl::lose_share_on(Node& node, Job& job, Attempt& attempt, Share& share,
                                 const std::string& reason) {
  node.leftovers.insert({job.row.id, attempt.row.attempt});
  node.ended.insert({job.row.id, attempt.row.attempt});
  // Its ranks may run until then; two attempts never run at once.
  const Monotonic lease_end = node.heard + options.lease;
  job.not_before = std::max(job.not_before.value_or(lease_end), lease_end);
  lose_share(job, attempt, share, reason, node.heard);
}

void Engine::Impl::lose_shares_on_lost(Job& job, Attempt& attempt) {
  for (Share& share : attempt.shares) {
    const auto node = nodes.find(share.row.node);
    if (!share.live() || node == nodes.end()) continue;
    const NodeRow& row = node->second.row;
    if (row.state != NodeState::lost && counts(row.state)) continue;
    lose_share_on(node->second, job, attempt, share, was_lost(row.node, row.reason));
  }
}

void Engine::Impl::lose_share(Job& job, Attempt& attempt, Share& share, const std::string& reason,
                              Monotonic heard) {
  const JobId id = job.row.id;
  const NodeId node = share.row.node;
  Tx tx;
  share.row.state = ShareState::lost;
  share.row.outcome = "lost";
  share.row.reason = reason;
  share.failed = heard;
  attempt.lose(node, heard);
  lose_ranks(tx, attempt, share);
  tx.changes.shares.push_back(share.row);
  fail_attempt(tx, job, attempt, reason, node);
  if (remote(share)) {
    note(tx, job, EventLevel::warning,
         "what its ranks on " + node.str() + " wrote after the head last heard of it is not here");
  }
  commit(job, std::move(tx), Urgency::now);
  check_end(id);
}

void Engine::Impl::share_broken(const NodeId& id, const JobId& job_id, int number,
                                const std::string& reason, Broken how,
                                const std::vector<pid_t>& unkillable) {
  if (const auto node = nodes.find(id); node != nodes.end()) {
    if (drop_leftover(node->second, job_id, number)) {
      if (Job* waits = find(job_id)) look_at_lease(*waits);
      schedule();
      rearm();
      return;
    }
  }
  Job* job = find(job_id);
  Attempt* attempt = job == nullptr ? nullptr : job->live_attempt();
  Share* share =
      attempt == nullptr || attempt->row.attempt != number ? nullptr : attempt->share(id);
  if (share == nullptr || !share->live()) return;

  Tx tx;
  std::string said = how == Broken::not_started
                         ? "it could not be started on " + id.str() + ": " + reason
                         : reason;
  share->row.state = ShareState::finished;
  share->row.outcome = "failed";
  share->failed = share->machine_gone.value_or(clock.now());
  if (share->machine_gone) {
    said = id.str() + " was started anew";
    share->row.outcome = "lost";
    attempt->lose(id, *share->machine_gone);
  }
  if (attempt->ending() && job->row.stop_cause != StopCause::none) share->row.outcome = "stopped";
  share->row.reason = said;
  lose_ranks(tx, *attempt, *share);
  note_unkillable(tx, *job, id, unkillable);
  tx.changes.shares.push_back(share->row);
  if (share->row.outcome != "stopped") fail_attempt(tx, *job, *attempt, said, id);
  commit(*job, std::move(tx), Urgency::soon);
  check_end(job_id);
}

}  // namespace dtrain::head
