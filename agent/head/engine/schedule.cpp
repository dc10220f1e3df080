#include <algorithm>
#include <utility>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/elf.hpp"
#include "launcher/spec/limits.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/preparation.hpp"

// The queue, and the start and the end of attempts.
namespace dtrain::head {
namespace {

constexpr int kLookShare = 3;  // times what a look at the queue took, until the next one
constexpr Monotonic::duration kLongestPause = std::chrono::seconds(2);  // and at most
constexpr std::chrono::seconds kLookForStorage{10};  // while a job's is not there
constexpr int kNotedWaits = 20;  // changes of a job's reason to wait that become events

// How long the job may still take at most, an end by timeout_s included; absent: not known, or it
// should have ended already.
std::optional<std::chrono::seconds> longest(const Job& job, Monotonic now) {
  if (!job.spec.timeout) return std::nullopt;
  const std::chrono::seconds grace =
      job.row.stop_grace_s ? std::chrono::seconds(*job.row.stop_grace_s) : job.spec.stop_grace;
  const auto ran = job.started_at ? now - *job.started_at : Monotonic::duration::zero();
  const auto left = std::chrono::ceil<std::chrono::seconds>(*job.spec.timeout + grace - ran);
  if (left <= std::chrono::seconds::zero()) return std::nullopt;
  return left;
}

// What its type says that it has.
void take_what_it_says(const wire::NodeTypes::Type* type, NodeCapacity& capacity) {
  if (type == nullptr) return;
  capacity.cpus = type->cpus.value_or(capacity.cpus);
  capacity.gpus = std::min(capacity.gpus, type->gpus.value_or(capacity.gpus));
  if (type->memory) {
    capacity.memory = std::min(capacity.memory, static_cast<std::uint64_t>(*type->memory));
  }
  capacity.custom = type->resources;
  capacity.labels = type->labels;
}

}  // namespace

PlacedShare placed(const Job& job, const Share& share) {
  return {share.row.node,
          share.row.first_rank,
          share.row.nproc,
          share.row.cpus,
          share.row.memory,
          share.row.gpus,
          taken(job.spec.custom_resources, share.row.nproc),
          job.spec.resources.gpu.value_or(1).of_each()};
}

void Engine::set_node_types(const wire::NodeTypes& types) {
  if (impl_->node_types == types) return;
  impl_->node_types = types;
  impl_->take_machines();
}

const Growth& Engine::expect_machines(const MachinesToCome& machines) {
  if (impl_->told_machines != machines) {
    impl_->told_machines = machines;
    impl_->take_machines();
  }
  return impl_->growth;
}

void Engine::Impl::take_machines() {
  to_come = told_machines;
  for (MachineType& type : to_come.types) take_what_it_says(node_types.find(type.name), type.each);
  look_at_queue();
}

NodeCapacity Engine::Impl::empty_capacity(const Node& node) const {
  NodeCapacity capacity;
  capacity.node = node.row.node;
  capacity.cpus = node.row.cpus;
  capacity.gpus = node.row.gpus;
  capacity.memory = node.row.memory;
  capacity.glibc = parse_glibc_version(node.glibc);
  if (node.slurm || node.connected) capacity.allocation = node.slurm ? node.slurm->job : "";
  const auto made = node_types.nodes.find(node.row.node.str());
  const bool is_ups = !node.row.joined && made != node_types.nodes.end();
  take_what_it_says(node_types.find(is_ups ? made->second : node.row.type), capacity);
  return capacity;
}

std::vector<NodeCapacity> Engine::Impl::capacities() const {
  std::vector<NodeCapacity> result;
  for (const auto& [id, node] : nodes) {
    const bool is_head = !node.row.joined && node.row.machine == options.machine;
    if (!counts(node.row.state) || (is_head && !options.ranks_on_head)) continue;
    NodeCapacity capacity = empty_capacity(node);
    if (node.row.state != NodeState::ready || !node.connected) {
      capacity.usable = false;
      capacity.why_not =
          std::string("is ") +
          (node.row.state == NodeState::ready ? "not connected" : to_string(node.row.state));
    } else if (node.being_removed) {
      capacity.usable = false;
      capacity.why_not = "is being removed";
    } else if (!node.leaves.empty()) {
      capacity.usable = false;
      capacity.why_not = "is about to leave";
    } else if (node.unprepared) {
      capacity.usable = false;
      capacity.why_not = "is not prepared yet";
    } else if (const JobId* const unread_job = unread_on(node)) {
      capacity.usable = false;
      capacity.why_not = "runs " + unread_job->str() + ", which this head cannot read";
    } else if (!node.leftovers.empty()) {
      capacity.usable = false;
      capacity.why_not = "still stops an old attempt of " + node.leftovers.begin()->first.str();
    }
    result.push_back(std::move(capacity));
  }
  for (const auto& [id, job] : live) {
    const Attempt* attempt = job->live_attempt();
    if (attempt == nullptr) continue;
    for (const Share& share : attempt->shares) {
      if (!share.live()) continue;
      // They are by name, as the nodes are.
      const auto at = std::lower_bound(
          result.begin(), result.end(), share.row.node,
          [](const NodeCapacity& each, const NodeId& node) { return each.node < node; });
      if (at != result.end() && at->node == share.row.node) use(*at, placed(*job, share));
    }
  }
  return result;
}

std::set<NodeId> Engine::Impl::beside(const NodeId& id) const {
  std::set<NodeId> all;
  const auto found = nodes.find(id);
  if (found == nodes.end()) return all;
  for (const auto& [other, node] : nodes) {
    if (node.row.machine == found->second.row.machine) all.insert(other);
  }
  return all;
}

std::vector<WaitingJob> Engine::Impl::waiting() const {
  std::vector<WaitingJob> queue;
  const KeptGangs gangs_kept = kept_gangs();
  for (const auto& [id, each] : live) {
    const Job& job = *each;
    const bool waits = job.row.state == JobState::queued || job.row.state == JobState::restarting;
    if (!job.durable || !waits || job.preparing) continue;
    queue.push_back({id, job.spec.priority, job.order, demand_of(job.spec), held(job),
                     longest(job, clock.now()), beside(job.suspect), kept_for(job, gangs_kept)});
  }
  return queue;
}

std::vector<RunningJob> Engine::Impl::running() const {
  std::vector<RunningJob> result;
  for (const auto& [id, job] : live) {
    const Attempt* attempt = job->live_attempt();
    if (attempt == nullptr) continue;
    RunningJob& each = result.emplace_back();
    each.left = longest(*job, clock.now());
    for (const Share& share : attempt->shares) {
      if (share.live()) each.shares.push_back(placed(*job, share));
    }
  }
  return result;
}

int Engine::Impl::missing_nodes() const {
  int known_nodes = 0;
  for (const auto& [id, node] : nodes) {
    known_nodes += counts(node.row.state) && !node.row.joined ? 1 : 0;
  }
  return std::max(0, options.expected_nodes - known_nodes);
}

std::string Engine::Impl::held(const Job& job) const {
  if (std::string why = held_by_restore(job); !why.empty()) return why;
  if (job.not_before && *job.not_before > clock.now()) {
    return "waits until the lease of a lost node has run out (" +
           human_duration(*job.not_before - clock.now()) + ")";
  }
  if (job.backoff_until && *job.backoff_until > clock.now()) {
    return "waits until " + rfc3339(job.backoff_ends) +
           " before it begins anew (restart.backoff_s)";
  }
  if (job.storage_look) {
    return "waits for its storage: " + printable_path(checkpoints_folder(storage(job))) +
           " is not there, and checkpoints in it are on record (" +
           std::to_string(job.checkpoints.size()) +
           "); mount it, or make that folder to go on without them";
  }
  for (const std::string& other : job.spec.after) {
    const auto found = jobs.find(JobId(other));
    if (found != jobs.end() && found->second.shown.state != JobState::succeeded) {
      return "waits for " + other + " to succeed";
    }
  }
  return {};
}

// Jobs that come after one that did not succeed end with it.
void Engine::Impl::settle_dependents() {
  bool again = true;
  while (again) {
    again = false;
    std::vector<Job*> come_after;
    for (const auto& [id, job] : live) {
      if (!job->spec.after.empty()) come_after.push_back(job);
    }
    for (Job* each : come_after) {
      Job& job = *each;
      if (!job.durable || job.row.state != JobState::queued) continue;
      for (const std::string& other : job.spec.after) {
        const Job* before = find(JobId(other));
        const bool failed = before == nullptr || (is_final(before->shown.state) &&
                                                  before->shown.state != JobState::succeeded);
        if (!failed) continue;
        const std::string reason = "the job it comes after, " + other + ", " +
                                   (before == nullptr ? std::string("is gone")
                                    : before->shown.state == JobState::failed ? "failed"
                                                                              : "was stopped");
        if (job.preparing) {
          job.attempts.pop_back();
          job.preparing = false;
        }
        Tx tx;
        note(tx, job, EventLevel::error, reason);
        job.row.error = wire::dump(error_without_rank(reason, 0));
        enter(tx, job, JobEvent::fail, reason);
        tx.effects.push_back([this] { schedule(); });
        commit(job, std::move(tx), Urgency::now);
        again = true;
        break;
      }
    }
  }
}

void Engine::Impl::schedule() {
  if (!std::exchange(look_posted, true)) post_look();
}

void Engine::Impl::post_look() {
  post([this] {
    look_waits = next_look - clock.now() >= std::chrono::milliseconds(1);
    if (look_waits) return rearm();  // tick() posts it again then
    look_posted = false;
    look_at_queue();
  });
}

void Engine::Impl::look_at_queue() {
  if (looking) return;
  looking = true;
  const Monotonic begin = clock.now();
  settle_drains();
  settle_dependents();
  settle_spares(false);
  const std::vector<WaitingJob> queue = waiting();
  growth = grown(queue);
  if (!queue.empty()) {
    QueueDecision decision = decide_queue(free_now(), queue, nodes_to_come(), running());
    for (const QueueDecision::Start& start : decision.starts) {
      begin_attempt(jobs.at(start.job), start);
    }
    // Who was looked at before them may do with what was kept.
    for (const JobId& id : decision.gave_up) {
      Job& job = jobs.at(id);
      job.gave_up_kept = !job.preparing;
    }
    if (!decision.gave_up.empty()) schedule();
    if (!decision.starts.empty()) growth = grown(waiting());
    for (auto& [id, reason] : decision.reasons) {
      Job& job = jobs.at(id);
      const auto coming = growth.reasons.find(id);
      if (coming != growth.reasons.end()) reason = coming->second;
      if (job.waits == reason) continue;
      job.waits = reason;
      tell_state(job);
      // The lease's seconds run down; one line of it is enough.
      if (job.waits_noted >= kNotedWaits || (job.not_before && job.waits_noted > 0)) continue;
      ++job.waits_noted;
      Tx tx;
      note(tx, job, EventLevel::info, reason);
      commit(job, std::move(tx), Urgency::soon);
    }
  }
  settle_spares(true);
  if (!to_come.types.empty()) note_needs();
  looking = false;
  // Where many wait it takes long: others have three quarters of this thread, but for looks at what
  // is heard of machines.
  next_look = clock.now() + std::min(kLookShare * (clock.now() - begin), kLongestPause);
}

std::vector<NodeCapacity> Engine::Impl::free_now() const {
  std::vector<NodeCapacity> now = capacities();
  for (NodeCapacity& node : now) {
    const auto kept = growth.kept.find(node.node);
    if (kept == growth.kept.end()) continue;
    for (const PlacedShare& share : kept->second) use(node, share);
  }
  const KeptGangs gangs_kept = kept_gangs();
  for (const auto& [id, job] : live) use_kept(*job, gangs_kept, true, now);
  return now;
}

// Who begins anew on what is kept for it needs no other machine; spares are wanted after all jobs.
std::vector<WaitingJob> Engine::Impl::growth_queue(const std::vector<WaitingJob>& queue,
                                                   std::vector<NodeCapacity>& all) const {
  std::set<JobId> served;
  const KeptGangs gangs_kept = kept_gangs();
  for (const WaitingJob& job : queue) {
    if (job.kept.width == 0) continue;
    std::vector<NodeCapacity> with_kept = all;
    use_kept(*live.at(job.job), gangs_kept, true, with_kept);
    order_by_name(with_kept);
    if (place_on_kept(std::move(with_kept), job)) served.insert(job.job);
  }
  std::vector<WaitingJob> wants;
  for (const WaitingJob& job : queue) {
    if (!served.contains(job.job)) wants.push_back(job);
  }
  for (const auto& [id, job] : live) {
    const bool runs = job->live_attempt() != nullptr;
    if (runs || served.contains(id)) use_kept(*job, gangs_kept, true, all);
    const auto missing = job->spec.spares - static_cast<int>(job->spares.size());
    if (!runs || missing <= 0 || job->row.stop_cause != StopCause::none) continue;
    WaitingJob want{id, -limits::kPriority - 1, job->order, demand_of(job->spec), ""};
    want.demand.nnodes = {1, 1};  // each by itself
    want.wished = true;
    wants.insert(wants.end(), static_cast<std::size_t>(missing), want);
  }
  return wants;
}

Growth Engine::Impl::grown(const std::vector<WaitingJob>& queue) const {
  if (to_come.types.empty()) return {};
  std::vector<NodeCapacity> all = capacities();
  const bool has_spares = std::any_of(
      live.begin(), live.end(), [](const auto& each) { return each.second->spec.spares > 0; });
  std::vector<WaitingJob> with_spares;
  if (has_spares) with_spares = growth_queue(queue, all);
  const std::vector<WaitingJob>& wants = has_spares ? with_spares : queue;
  if (wants.empty()) return {};
  std::set<NodeId> soon;
  for (const NodeCapacity& each : all) {
    const Node& node = nodes.at(each.node);
    const bool stays = node.row.state == NodeState::ready || node.row.state == NodeState::joining;
    const bool is_broken = node.preparing.starts_with(wire::kCannotBePrepared);
    if (!each.usable && stays && node.leaves.empty() && !node.being_removed && !is_broken) {
      soon.insert(each.node);
    }
  }
  return decide_growth(all, soon, wants, to_come);
}

void Engine::Impl::note_needs() {
  std::set<NodeId> now;
  for (const auto& [node, why] : nodes_in_use()) now.insert(node);
  for (const auto& [node, job] : spares()) now.insert(node);
  now.insert(growth.needed.begin(), growth.needed.end());
  const bool changed = growth.gangs != gangs || now != busy;
  gangs = growth.gangs;
  busy = std::move(now);
  if (changed) hooks.needs();
}

void Engine::Impl::begin_attempt(Job& job, const QueueDecision::Start& start) {
  job.overtakes = start.reason;
  const int number = next_attempt(job);
  Attempt& attempt = job.attempts.emplace_back();
  attempt.row.job = job.row.id;
  attempt.row.attempt = number;
  attempt.row.token = random_hex(16);
  attempt.row.created = clock.wall();
  int node_rank = 0;
  for (const PlacedShare& part : start.shares) {
    const NodeRow& node = nodes.at(part.node).row;
    Share& share = attempt.shares.emplace_back();
    share.row.job = job.row.id;
    share.row.attempt = number;
    share.row.node = part.node;
    share.row.node_rank = node_rank++;
    share.row.first_rank = part.first_rank;
    share.row.nproc = part.nproc;
    share.row.cpus = part.cpus;
    share.row.memory = part.memory;
    share.row.gpus = part.gpus;
    share.row.gpus_assigned = node.gpus > 0;
    share.row.address = node.address;
    share.row.machine = node.machine;
    share.row.root = node.root;
    share.was_spare = std::any_of(job.spares.begin(), job.spares.end(), [&](const Spare& spare) {
      return spare.share.node == part.node;
    });
    attempt.row.world_size += part.nproc;
  }
  choose_addresses(attempt);
  const bool shared = !job.spec.storage_path.empty() &&
                      std::any_of(attempt.shares.begin(), attempt.shares.end(),
                                  [this](const Share& share) { return remote(share); });
  if (shared) {
    attempt.token = random_hex(16);
    attempt.token_file = token_file(storage(job), attempt.token).string();
  }
  job.preparing = true;
  work_in<Prepared>(
      job.spec.storage_path, StorageWork::quick,
      [folder = storage(job), number, token_file = attempt.token_file, token = attempt.token,
       recorded = !job.checkpoints.empty()]() -> Prepared {
        try {
          // It may not be mounted now. An attempt that began without them would commit what counts
          // as newer than they.
          if (recorded && !fs::exists(checkpoints_folder(folder))) return {{}, std::nullopt, true};
          make_folders(folder);
          clear_temporary(folder, number);
          if (!token_file.empty()) write_file_atomic(token_file, token);
          return {scan_storage(folder), std::nullopt};
        } catch (const Error& error) {
          return {{}, error};
        } catch (const std::exception& error) {
          return {{}, Error(ErrorCode::io, error.what())};
        }
      },
      [this, id = job.row.id, token = attempt.row.token](Prepared result) {
        prepared(id, token, std::move(result));
      });
}

// Until it is there the job is held: one that waited for nodes would keep others from theirs.
void Engine::Impl::look_for_storage(Job& job) {
  job.storage_look = clock.now() + kLookForStorage;
  work_in<bool>(
      job.spec.storage_path, StorageWork::quick,
      [folder = checkpoints_folder(storage(job))] {
        std::error_code unseen;  // then an attempt begins, and says why it cannot
        return fs::exists(folder, unseen) || unseen;
      },
      [this, id = job.row.id](bool is_there) {
        Job* found = find(id);
        if (!is_there || found == nullptr) return;
        found->storage_look.reset();
        schedule();
        rearm();
      });
}

void Engine::Impl::prepared(const JobId& id, const std::string& token, Prepared result) {
  Job* found = find(id);
  if (found == nullptr || !found->preparing || found->attempts.back().row.token != token) return;
  Job& job = *found;
  job.preparing = false;
  Attempt& attempt = job.attempts.back();
  Tx tx;
  if (result.error) {
    const std::string reason = "its storage cannot be used: " + std::string(result.error->what());
    job.attempts.pop_back();
    note(tx, job, EventLevel::error, reason);
    job.row.error = wire::dump(error_without_rank(reason, job.row.attempt));
    enter(tx, job, JobEvent::fail, reason);
    commit(job, std::move(tx), Urgency::now);
    schedule();
    return;
  }
  if (result.away) {
    job.attempts.pop_back();
    job.gave_up_kept = true;  // how long that takes nobody knows
    job.storage_look = clock.now() + kLookForStorage;
    schedule();
    rearm();
    return;
  }
  // A node may have gone since; then the job waits again.
  for (const Share& share : attempt.shares) {
    const Node& node = nodes.at(share.row.node);
    if (takes_ranks(node)) continue;
    job.attempts.pop_back();
    schedule();
    return;
  }
  reconcile(tx, job, result.scan);
  job.row.attempt = attempt.row.attempt;
  if (restored && restored->open.erase(id) > 0) tx.changes.restored = restored;
  job.waits.clear();
  job.not_before.reset();
  job.gave_up_kept = false;
  if (!job.checkpoints.empty()) {
    attempt.row.checkpoint = job.checkpoints.back().path;
  } else if (job.spec.start) {
    attempt.row.checkpoint = start_path(job);
  }
  if (!job.row.started) {
    job.row.started = clock.wall();
    job.started_at = clock.now();
  }
  std::vector<std::string> names;
  for (const Share& share : attempt.shares) {
    names.push_back(share.row.node.str());
    tx.changes.shares.push_back(share.row);
  }
  tx.changes.attempts.push_back(attempt.row);
  std::string message = "attempt " + std::to_string(attempt.row.attempt) + " starts with " +
                        std::to_string(attempt.row.world_size) +
                        (attempt.row.world_size == 1 ? " rank on " : " ranks on ") +
                        join_some(names, kNamedNodes);
  if (job.checkpoints.empty() && job.spec.start) {
    message += ", from " + job.spec.start->str();
  } else if (attempt.row.checkpoint) {
    message += ", from " + fs::path(*attempt.row.checkpoint).filename().string() + " (step " +
               std::to_string(job.checkpoints.back().step) + ")";
  }
  std::vector<std::string> taken_spares;
  for (const Share& share : attempt.shares) {
    if (share.was_spare) taken_spares.push_back(share.row.node.str());
  }
  if (!taken_spares.empty()) {
    message += "; " + join_some(taken_spares, kNamedNodes) +
               (taken_spares.size() == 1 ? " was its spare" : " were its spares");
  }
  job.unfit.clear();
  if (!job.overtakes.empty()) note(tx, job, EventLevel::info, job.overtakes);
  enter(tx, job, job.spec.content ? JobEvent::stage : JobEvent::place, job.overtakes);
  note(tx, job, EventLevel::info, message);
  tx.effects.push_back([this, id, number = attempt.row.attempt] {
    Job* ready = find(id);
    Attempt* started_attempt = ready == nullptr ? nullptr : ready->live_attempt();
    if (started_attempt == nullptr || started_attempt->row.attempt != number) return;
    started_attempt->durable = true;
    // Nodes may have been lost while it was written; of one that is being ended nothing was sent.
    if (!started_attempt->ending()) lose_shares_on_lost(*ready, *started_attempt);
    advance(*ready, *started_attempt);
  });
  commit(job, std::move(tx), Urgency::now);
  rearm();
}

// Starts what can be started now: the node of rank 0, and the others once its port is known.
void Engine::Impl::advance(Job& job, Attempt& attempt) {
  if (!attempt.durable || attempt.row.ended) return;
  if (attempt.ending()) {
    Tx tx;
    drop_unsent(job, attempt, tx);
    if (!tx.changes.shares.empty()) commit(job, std::move(tx), Urgency::soon);
    check_end(job.row.id);
    return;
  }
  if (!ready_to_start(job, attempt)) return;
  if (!content_in_place(job, attempt)) return;
  if (job.spec.launcher == Launcher::srun) {
    if (awaits_names(attempt)) return;
    if (const std::string why = not_one_allocation(attempt); !why.empty()) {
      return give_up_start(job, attempt, why);
    }
  }
  for (Share& share : attempt.shares) {
    if (share.start_sent || !share.live()) continue;
    if (share.row.node_rank == 0 || attempt.row.master_port != 0) send_start(job, attempt, share);
  }
}

void Engine::Impl::send_start(Job& job, Attempt& attempt, Share& share) {
  share.start_sent = true;
  wire::AttemptSpec spec;
  spec.cluster = options.cluster;
  spec.job = job.row.id;
  spec.job_name = job.spec.name;
  spec.attempt = attempt.row.attempt;
  spec.node = share.row.node;
  // Of the node too: on one machine a supervisor's sweep must not reach another node's ranks.
  spec.token = attempt.row.token + "-" + std::to_string(share.row.node_rank);
  spec.node_rank = share.row.node_rank;
  spec.nnodes = static_cast<int>(attempt.shares.size());
  spec.first_rank = share.row.first_rank;
  spec.nproc = share.row.nproc;
  spec.world_size = attempt.row.world_size;
  for (const Share& other : attempt.shares) {
    spec.node_ips.push_back(other.row.address);
    if (other.row.machine == share.row.machine) spec.machine_ranks += other.row.nproc;
  }
  spec.master_addr = many_machines(attempt) ? spec.node_ips.front() : "127.0.0.1";
  spec.master_port = share.row.node_rank == 0 ? 0 : attempt.row.master_port;
  spec.command = job.spec.command;
  spec.shell = job.spec.shell;
  spec.workdir = job.spec.workdir;
  spec.env = job.spec.env;
  if (const auto& trial = job.spec.trial) {
    spec.env["DTRAIN_SEARCH_ID"] = trial->search;
    spec.env["DTRAIN_TRIAL"] = std::to_string(trial->number);
    spec.env["DTRAIN_PARAMS"] = trial->params;
  }
  spec.setup = job.spec.setup;
  spec.storage_path = storage_of(job, share);
  spec.checkpoint = checkpoint_of(job, attempt, share);
  spec.gpus = share.row.gpus;
  spec.gpus_assigned = share.row.gpus_assigned;
  spec.rank_memory = job.spec.resources.memory.value_or(0);
  spec.rank_cpus = job.spec.bound_cpus();
  spec.rank_threads = job.spec.rank_threads();
  spec.log_limit = job.spec.kept_log();
  spec.max_restarts = job.spec.max_restarts;
  spec.stop_grace = job.spec.stop_grace;
  spec.on_head_lost = job.spec.on_head_lost;
  spec.lease = options.lease;
  spec.content = job.spec.content;
  if (job.spec.launcher == Launcher::srun) spec.srun = srun_step(attempt);
  spec.beats = nodes.at(share.row.node).features.contains("beats");
  const auto lacks = [&](bool asked, const char* feature, const char* what) {
    if (!asked || nodes.at(share.row.node).features.contains(feature)) return;
    Tx tx;
    warn(tx, job, attempt,
         share.row.node.str() + ": " + what + ": its agent is older than the head's");
    commit(job, std::move(tx), Urgency::soon);
  };
  lacks(spec.rank_memory > 0, "memory", "memory is not enforced");
  lacks(spec.rank_cpus > 0, "cpu_bind", "ranks are not bound to CPUs");

  std::map<std::string, std::string> secrets;
  if (!job.spec.secrets.empty()) {
    try {
      secrets = wire::parse_json(read_file(options.root.secrets(job.row.id)), "the secrets")
                    .get<std::map<std::string, std::string>>();
    } catch (const std::exception& error) {
      share_broken(share.row.node, job.row.id, attempt.row.attempt,
                   std::string("its secrets cannot be read: ") + error.what(), Broken::not_started,
                   {});
      return;
    }
  }
  nodes_out.start(share.row.node, spec, secrets);
}

}  // namespace dtrain::head
