#include <algorithm>
#include <utility>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/log.hpp"

// What happens by the clock: silence, timeouts, leases.
namespace dtrain::head {
namespace {

// While no node can come: once they can, they have all of their time but for this.
constexpr std::chrono::seconds kLookWhileShut{1};

}  // namespace

// Of a jump that is not kept the next head learns by its own look, for what is written from then
// on.
void Engine::Impl::see_clock() {
  if (!moments.see(clock.now(), clock.wall())) return;
  quick.add([file = options.root.clock(), text = moments.dump()] {
    try {
      write_file_atomic(file, text);
    } catch (const Error& error) {
      log::warn("that the clock was set is not kept", {{"why", error.what()}});
    }
  });
}

void Engine::Impl::rearm() {
  if (std::exchange(arm_posted, true)) return;
  post([this] {
    arm_posted = false;
    arm();
  });
}

void Engine::Impl::arm() {
  std::optional<Monotonic> first = std::min(next_housekeeping, next_disk_look);
  const auto at = [&](Monotonic time) { first = std::min(*first, time); };
  for (const auto& [id, each] : live) {
    const Job& job = *each;
    if (job.spec.queue_timeout && job.row.state == JobState::queued) {
      at(job.created_at + *job.spec.queue_timeout);
    }
    if (job.spec.timeout && job.started_at && job.row.stop_cause == StopCause::none) {
      at(*job.started_at + *job.spec.timeout);
    }
    if (job.not_before) at(*job.not_before);
    if (job.backoff_until) at(*job.backoff_until);
    if (job.storage_look) at(*job.storage_look);
    if (const auto due = hang_due(job)) at(*due);
    for (const Spare& spare : job.spares) {
      if (spare.pairs_again) at(*spare.pairs_again);
    }
    if (job.attempts.empty()) continue;
    for (const auto& [step, collecting] : job.attempts.back().collecting) {
      if (collecting.again) at(*collecting.again);
      if (const auto due = collecting.shards_due()) at(*due);
    }
  }
  for (const auto& [id, search] : live_searches) {
    if (const auto end = budget_ends(*search)) at(*end);
    if (search->again) at(*search->again);
  }
  if (look_waits) at(next_look);
  if (restored && !restored->settled) at(restore_settles);
  if (!nodes_out.can_come()) at(clock.now() + kLookWhileShut);
  for (const auto& [id, node] : nodes) {
    if (next(node.row.state, NodeEvent::silence)) at(node.heard + options.node_lost_after);
  }
  if (armed && *armed <= *first && *armed > clock.now()) return;
  armed = first;
  const auto delay = std::max(std::chrono::milliseconds(0),
                              std::chrono::ceil<std::chrono::milliseconds>(*first - clock.now()));
  hooks.timer(delay, [this, guard = std::weak_ptr<int>(alive)] {
    if (guard.lock()) tick();
  });
}

void Engine::Impl::tick() {
  armed.reset();
  const Monotonic now = clock.now();
  see_clock();
  if (look_waits && now >= next_look) {
    look_waits = false;
    post_look();
  }
  std::vector<NodeId> silent;
  for (auto& [id, node] : nodes) {
    if (!nodes_out.can_come()) node.heard = now;
    if (next(node.row.state, NodeEvent::silence) && now - node.heard >= options.node_lost_after) {
      silent.push_back(id);
    }
  }
  for (const NodeId& id : silent) lose_node(nodes.at(id));
  settle_restore();
  const std::map<JobId, Job*> all = live;
  for (const auto& [id, known_then] : all) {
    Job* job = find(id);
    if (job == nullptr || !job->durable || job->ended()) continue;
    if (job->not_before && *job->not_before <= now) job->not_before.reset();
    if (job->backoff_until && *job->backoff_until <= now) job->backoff_until.reset();
    if (job->storage_look && *job->storage_look <= now) look_for_storage(*job);
    for (Spare& spare : job->spares) {
      if (spare.pairs_again && *spare.pairs_again <= now) spare.pairs_again.reset();
    }
    if (job->spec.queue_timeout && job->row.state == JobState::queued && !job->preparing &&
        now - job->created_at >= *job->spec.queue_timeout) {
      stop(*job, std::nullopt, StopCause::timeout,
           "it waited longer than queue_timeout_s (" +
               std::to_string(job->spec.queue_timeout->count()) + " s)" +
               (job->waits.empty() ? "" : ": " + job->waits),
           nullptr);
    } else if (job->spec.timeout && job->started_at && job->row.stop_cause == StopCause::none &&
               now - *job->started_at >= *job->spec.timeout) {
      stop(*job, std::nullopt, StopCause::timeout,
           "it ran longer than timeout_s (" + std::to_string(job->spec.timeout->count()) + " s)",
           nullptr);
    }
    if (Attempt* attempt = job->live_attempt()) look_for_room(*job, *attempt);
    if (Attempt* attempt = job->live_attempt()) look_for_shards(*job, *attempt);
    if (Attempt* attempt = job->live_attempt()) look_for_hang(*job, *attempt);
  }
  const std::map<SearchId, SearchOf*> open_searches = live_searches;
  for (const auto& [id, search] : open_searches) {
    if (search->again && *search->again <= now) post_look(id);
    const auto end = budget_ends(*search);
    if (!end || *end > now) continue;
    halt_search(*search, Search::Halt::time_budget,
                "its time_budget_s, " + std::to_string(search->state->spec().time_budget->count()) +
                    " s, is over");
  }
  if (now >= next_housekeeping) housekeeping();
  if (now >= next_disk_look) look_at_disk();
  schedule();
  rearm();
}

}  // namespace dtrain::head
