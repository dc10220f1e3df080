#include <sys/statvfs.h>

#include <algorithm>

#include "agent/head/engine_impl.hpp"
#include "agent/head/retention.hpp"
#include "launcher/core/log.hpp"

// What happens by the clock: silence, timeouts, leases, and what is old.
namespace dtrain::head {
namespace {

constexpr std::chrono::hours kHousekeepingEvery{1};

std::uint64_t tree_size(const fs::path& folder) {
  std::uint64_t total = 0;
  std::error_code failed;
  for (fs::recursive_directory_iterator it(folder, failed), end; !failed && it != end;
       it.increment(failed)) {
    std::error_code gone;
    if (!it->is_regular_file(gone) || it->is_symlink(gone)) continue;
    const std::uintmax_t size = it->file_size(gone);
    if (!gone) total += size;
  }
  return total;
}

}  // namespace

void Engine::Impl::rearm() {
  std::optional<Monotonic> first = next_housekeeping;
  const auto at = [&](Monotonic time) { first = std::min(*first, time); };
  for (const JobId& id : live) {
    const Job& job = jobs.at(id);
    if (job.spec.queue_timeout && job.row.state == JobState::queued) {
      at(job.created_at + *job.spec.queue_timeout);
    }
    if (job.spec.timeout && job.started_at && job.row.stop_cause == StopCause::none) {
      at(*job.started_at + *job.spec.timeout);
    }
    if (job.not_before) at(*job.not_before);
  }
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
  std::vector<NodeId> silent;
  for (const auto& [id, node] : nodes) {
    if (next(node.row.state, NodeEvent::silence) && now - node.heard >= options.node_lost_after) {
      silent.push_back(id);
    }
  }
  for (const NodeId& id : silent) lose_node(nodes.at(id));
  const std::set<JobId> all = live;
  for (const JobId& id : all) {
    Job* job = find(id);
    if (job == nullptr || !job->durable || job->ended()) continue;
    if (job->not_before && *job->not_before <= now) job->not_before.reset();
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
  }
  if (now >= next_housekeeping) housekeeping();
  schedule();
  rearm();
}

// Forgets jobs that ended long ago or fill the disk.
void Engine::Impl::housekeeping() {
  next_housekeeping = clock.now() + kHousekeepingEvery;
  if (housekeeping_runs) return;
  struct Folder {
    EndedJob job;
    fs::path storage;
    fs::path mirror;
  };
  std::vector<Folder> ended;
  for (const auto& [id, job] : jobs) {
    if (!is_final(job.shown.state) || !job.row.ended) continue;
    ended.push_back({{id, *job.row.ended, 0},
                     options.root.storage(id),
                     options.root.root / "mirror" / id.str()});
  }
  if (ended.empty()) return;
  housekeeping_runs = true;
  work<std::vector<JobId>>(
      bulk,
      [ended, now = clock.wall(), root = options.root.root]() mutable {
        std::vector<EndedJob> list;
        for (Folder& folder : ended) {
          folder.job.bytes = tree_size(folder.storage) + tree_size(folder.mirror);
          list.push_back(folder.job);
        }
        struct statvfs disk {};
        const std::uint64_t bytes = ::statvfs(root.c_str(), &disk) == 0
                                        ? std::uint64_t{disk.f_blocks} * disk.f_frsize
                                        : UINT64_MAX;
        return jobs_to_forget(std::move(list), now, bytes);
      },
      [this](std::vector<JobId> old) {
        housekeeping_runs = false;
        for (const JobId& id : old) {
          Job* job = find(id);
          if (job == nullptr) continue;
          try {
            remove(*job, nullptr);
            log::info("an old job was forgotten", {{"job", id.str()}});
          } catch (const Error& error) {
            log::info("an old job stays", {{"job", id.str()}, {"why", error.what()}});
          }
        }
      });
}

}  // namespace dtrain::head
