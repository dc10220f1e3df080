#include <algorithm>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/elf.hpp"

// Jobs whose files were sent by content: each node of an attempt brings what it lacks before any
// rank is started, so that none waits in its rendezvous for another's gigabytes.
namespace dtrain::head {
namespace {

constexpr std::chrono::milliseconds kTellEvery{500};

}  // namespace

// Refuses a program that too few nodes can run, before anything of it is sent.
void Engine::Impl::check_glibc(const JobSpec& spec) const {
  const Demand demand = demand_of(spec);
  if (!demand.glibc) return;
  int fine = 0;
  std::vector<std::string> old;
  for (const NodeCapacity& node : capacities()) {
    if (node.glibc && *node.glibc < *demand.glibc) {
      old.push_back(node.node.str() + " has " + node.glibc->str());
    } else {
      ++fine;
    }
  }
  if (old.empty() || fine >= spec.nnodes.min) return;
  // Nodes that are still to come may do, as machines that may be asked for.
  for (const MachineType& type : to_come.types) {
    if (!type.each.glibc || !(*type.each.glibc < *demand.glibc)) return;
  }
  if (fine + static_cast<int>(old.size()) + nodes_to_come() < spec.nnodes.min) return;
  if (fine + nodes_to_come() >= spec.nnodes.min) return;
  throw Error(ErrorCode::conflict, spec.content->glibc_of + " wants glibc " + demand.glibc->str() +
                                       ", and " + join_some(old, kNamedNodes))
      .with_hint("build it on a system as old as the nodes, or link it statically");
}

// Asks for what is not in place yet; true once all of it is, and the ranks may start.
bool Engine::Impl::content_in_place(Job& job, Attempt& attempt) {
  if (job.row.state != JobState::staging) return true;
  bool all = true;
  for (Share& share : attempt.shares) {
    // Where it has been started all was in place.
    if (!share.live() || share.staged || share.met) continue;
    all = false;
    if (share.stage_sent) continue;
    share.stage_sent = true;
    nodes_out.stage(share.row.node, {job.row.id, attempt.row.attempt, *job.spec.content});
  }
  if (!all) return false;
  Tx tx;
  enter(tx, job, JobEvent::place, job.overtakes);
  commit(job, std::move(tx), Urgency::soon);
  return true;
}

void Engine::Impl::staging(const NodeId& node, const wire::Staging& news) {
  Job* job = find(news.job);
  Attempt* attempt = job == nullptr ? nullptr : job->live_attempt();
  Share* share =
      attempt == nullptr || attempt->row.attempt != news.attempt ? nullptr : attempt->share(node);
  if (share == nullptr || !share->live()) {
    spare_staged(node, news);
    return;
  }
  share->stage_done = news.done;
  share->stage_total = news.total;
  if (news.ready) {
    share->staged = true;
    advance(*job, *attempt);
    return;
  }
  if (job->shown.state != JobState::staging || clock.now() - job->staging_told < kTellEvery) return;
  job->staging_told = clock.now();
  tell_state(*job);
}

// "node-1 has 120 MiB of 1.2 GiB, node-2 …"
std::string Engine::Impl::staging_reason(const Job& job) {
  if (job.attempts.empty()) return {};
  std::vector<std::string> parts;
  std::size_t others = 0;
  for (const Share& share : job.attempts.back().shares) {
    if (!share.live() || share.staged) continue;
    constexpr std::size_t kNamed = 4;
    if (parts.size() == kNamed) {
      ++others;
    } else if (share.stage_total > 0) {
      parts.push_back(share.row.node.str() + " has " + human_bytes(share.stage_done) + " of " +
                      human_bytes(share.stage_total));
    }
  }
  if (others > 0) parts.push_back("and " + std::to_string(others) + " more");
  return join(parts, ", ");
}

std::string Engine::Impl::reason_of(const Job& job) const {
  const JobState state = job.shown.state;
  const bool waits = state == JobState::queued || state == JobState::restarting;
  if (waits && !job.waits.empty()) return job.waits;
  if (state == JobState::staging) return staging_reason(job);
  const bool runs = state == JobState::running && !job.attempts.empty();
  if (!runs) return job.shown.reason;
  const Attempt& attempt = job.attempts.back();
  if (!attempt.hang.empty()) return attempt.hang;
  for (const auto& [step, collecting] : attempt.collecting) {
    if (!collecting.no_room.empty()) return room_words(step, collecting);
  }
  return job.shown.reason.empty() ? job.lacks : job.shown.reason;
}

// It will not start there; what was begun may end.
void Engine::Impl::unstage(const Job& job, const Attempt& attempt, Share& share) {
  if (!std::exchange(share.stage_sent, false)) return;
  nodes_out.unstage(share.row.node, job.row.id, attempt.row.attempt);
}

std::optional<JobContent> Engine::Impl::content_for(const NodeId& node, const JobId& id,
                                                    int number) {
  Job* job = find(id);
  Attempt* attempt = job == nullptr ? nullptr : job->live_attempt();
  if (job != nullptr && is_spare(*job, node, number)) return job->spec.content;
  if (attempt == nullptr || attempt->row.attempt != number) return std::nullopt;
  const Share* share = attempt->share(node);
  if (share == nullptr || !share->live()) return std::nullopt;
  return job->spec.content;
}

std::optional<JobContent> Engine::content_for(const NodeId& node, const JobId& job,
                                              int attempt) const {
  return impl_->content_for(node, job, attempt);
}

void Engine::staging(const NodeId& node, const wire::Staging& news) {
  impl_->staging(node, news);
}

void Engine::check_content(const JobSpec& spec) const {
  impl_->check_glibc(spec);
}

}  // namespace dtrain::head
