#include <algorithm>
#include <cstdio>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/log.hpp"
#include "launcher/wire/json.hpp"

// What a head does whose database is a copy of an earlier time (Loaded::restored), and what it does
// with folders of jobs that no row names. What happened after the copy is not known; so that it can
// do no harm
//   - no attempt begins, of a job that was open in the copy, before the lease of everything that
//     might run is over, and the storage has been looked through;
//   - the number of its next attempt is above any that may have been used;
//   - an attempt that ran in the copy, and that its node still has, goes on; of any other the end
//     is lost, which counts as a lost node does;
//   - nothing is deleted that is not known.
namespace dtrain::head {
namespace {

// Attempts of one job that may have begun between the copy and the damage, beyond those of which a
// node, a checkpoint or a log tells: copies are minutes apart.
constexpr int kAttemptsUnknown = 1000;
// So long after it a person is told of it, and what may belong to lost jobs is kept.
constexpr std::chrono::hours kRestoredLately{24 * 7};
constexpr std::size_t kMostUnknownShown = 100;

// N of the newest "attempt-N…" in a folder; 0: there is none.
int newest_attempt_in(const fs::path& folder) {
  int newest = 0;
  for (const fs::path& entry : entries_of(folder)) {
    int number = 0;
    if (std::sscanf(entry.filename().c_str(), "attempt-%d", &number) == 1) {
      newest = std::max(newest, number);
    }
  }
  return newest;
}

std::string number_words(int number) {
  return "its next attempt will be numbered " + std::to_string(number) + " or above";
}

}  // namespace

std::string Engine::Impl::restored_words() const {
  return "the head's database was restored from a copy of " + rfc3339(restored->copied) + " (" +
         restored->why + ")";
}

bool Engine::Impl::restored_lately() const {
  return restored && clock.wall() - restored->time < kRestoredLately;
}

bool Engine::Impl::is_of_copy(const JobId& job) const {
  return restored && restored->open.contains(job);
}

std::string Engine::Impl::held_by_restore(const Job& job) const {
  if (unlooked.contains(job.row.id)) return "waits until its storage is looked through";
  if (!is_of_copy(job.row.id) || restored->settled) return {};
  return "waits until " + rfc3339(restore_settles_at) +
         ": attempts may run until then that the restored database does not know of";
}

int Engine::Impl::next_attempt(const Job& job) const {
  const int known_number = std::max(job.row.attempt, job.named);
  return known_number + 1 + (is_of_copy(job.row.id) ? kAttemptsUnknown : 0);
}

void Engine::Impl::take_restored() {
  if (!restored || restored->settled) return;
  restore_settles = clock.now() + options.lease;
  restore_settles_at = clock.wall() + options.lease;
  log::warn("the database is a copy of an earlier time",
            {{"of", rfc3339(restored->copied)}, {"why", restored->why}});
  for (const JobId& id : restored->open) {
    Job* job = find(id);
    if (job == nullptr || job->ended()) continue;
    if (restored->told) continue;
    Tx tx;
    note(tx, *job, EventLevel::warning,
         restored_words() + ": what happened to this job since is not known; " +
             number_words(next_attempt(*job)));
    commit(*job, std::move(tx), Urgency::soon);
  }
  restored->told = true;
  keep_restored();
  look_through_storage();
}

void Engine::Impl::keep_restored() {
  Changes changes;
  changes.restored = restored;
  store->commit(std::move(changes), Urgency::soon, OnFailure::retry, nullptr);
}

// What its supervisor said after the copy was acknowledged, and is not said again. Of that only the
// ranks' start has to be made up for: what follows shows that they have.
void Engine::Impl::fill_gap(Job& job, Attempt& attempt, Share& share,
                            const wire::AttemptEvent& event) {
  const bool ranks_ran = std::holds_alternative<wire::RankReport>(event.body) ||
                         std::holds_alternative<wire::RankBeats>(event.body) ||
                         std::holds_alternative<wire::RankExited>(event.body);
  if (event.seq == share.seen + 1 || share.row.ranks_started || !ranks_ran) return;
  wire::RanksStarted started_then;
  for (int i = 0; i < share.row.nproc; ++i) {
    started_then.ranks.push_back({share.row.first_rank + i, 0});  // its pid is not known
  }
  started_then.time = clock.wall();
  apply(job, attempt, share, share.seen, started_then);
}

void Engine::Impl::lose_end(Job& job, Attempt& attempt, Share& share) {
  if (!share.live()) return;
  lose_share(job, attempt, share,
             "how attempt " + std::to_string(attempt.row.attempt) + " ended on " +
                 share.row.node.str() + " is not known: " + restored_words(),
             clock.now());
}

// Checkpoints that were committed after the copy, and which numbers were used.
void Engine::Impl::look_through_storage() {
  struct Found {
    StorageScan scan;
    int attempt = 0;
  };
  for (const JobId& id : restored->open) {
    const Job* known_job = find(id);
    if (known_job == nullptr) continue;
    unlooked.insert(id);
    work_in<Found>(
        known_job->spec.storage_path, StorageWork::quick,
        [id, storage = storage(*known_job), mirror = options.root.mirror(id)] {
          Found found;
          try {
            found.attempt = newest_attempt_in(mirror);
            found.attempt =
                std::max(found.attempt, newest_attempt_in(checkpoints_folder(storage) / ".tmp"));
            found.scan = scan_storage(storage);
          } catch (const std::exception& error) {
            log::warn("a job's storage cannot be looked through",
                      {{"job", id.str()}, {"why", error.what()}});
          }
          for (const CommittedCheckpoint& each : found.scan.whole) {
            found.attempt = std::max(found.attempt, each.attempt);
          }
          return found;
        },
        [this, id](const Found& found) {
          unlooked.erase(id);
          if (Job* job = find(id)) {
            job->named = std::max(job->named, found.attempt);
            take_found(*job, found.scan);
          }
          schedule();
          rearm();
        });
  }
}

void Engine::Impl::take_found(Job& job, const StorageScan& scan) {
  Tx tx;
  for (const CommittedCheckpoint& each : scan.whole) {
    const bool is_known =
        std::any_of(job.checkpoints.begin(), job.checkpoints.end(),
                    [&](const CheckpointRow& row) { return row.number == each.number; });
    if (is_known || job.removing.contains(each.number)) continue;
    tx.changes.checkpoints.push_back(row_of(job.row.id, each));
    job.checkpoints.push_back(tx.changes.checkpoints.back());
    job.found.insert(each.number);
    note(tx, job, EventLevel::info,
         each.path.filename().string() + " (step " + std::to_string(each.step) +
             ") is newer than the restored database, and was found in the storage");
  }
  std::sort(job.checkpoints.begin(), job.checkpoints.end(),
            [](const CheckpointRow& a, const CheckpointRow& b) { return a.number < b.number; });
  job.least_number = std::max(job.least_number, scan.highest + 1);
  if (!tx.changes.checkpoints.empty()) commit(job, std::move(tx), Urgency::soon);
}

void Engine::Impl::settle_restore() {
  if (!restored || restored->settled) return;
  if (clock.now() < restore_settles) return;
  restored->settled = true;
  keep_restored();
  log::info("jobs of the restored database may begin", {});
  schedule();
}

// ---- Folders of jobs that no row names.

void Engine::Impl::look_for_unknown() {
  const std::string here = "head";  // no node is called so
  using Names = std::set<std::string>;
  work<Names>(
      tidy,
      [root = options.root] {
        Names names;
        for (const fs::path& folder : {root.storage(), root.mirror()}) {
          try {
            for (const fs::path& entry : entries_of(folder)) {
              if (valid_name(entry.filename().string())) names.insert(entry.filename().string());
            }
          } catch (const Error& error) {
            log::warn("folders of jobs cannot be looked at", {{"why", error.what()}});
          }
        }
        return names;
      },
      [this, here](const Names& names) {
        for (const std::string& name : names) note_folder(JobId(name), here);
      });
}

void Engine::Impl::note_folder(const JobId& id, const std::string& where) {
  if (jobs.contains(id) || forgotten.contains(id)) return;
  if (unknown[id].insert(where).second) {
    log::warn("a job is not known, and its folder stays", {{"job", id.str()}, {"on", where}});
  }
}

// What a node has now, in place of what it had.
void Engine::Impl::note_folders(const NodeId& node, const std::vector<JobId>& on_disk) {
  for (auto& [id, places] : unknown) places.erase(node.str());
  for (const JobId& id : on_disk) note_folder(id, node.str());
  std::erase_if(unknown, [](const auto& each) { return each.second.empty(); });
}

nlohmann::json Engine::Impl::store_view() const {
  const Store::Copy copy = store->copy();
  nlohmann::json view = {{"trouble", store->trouble()},
                         {"backup",
                          {{"path", copy.path.string()},
                           {"time", copy.time ? nlohmann::json(rfc3339(*copy.time)) : nullptr},
                           {"age_s", nullptr},
                           {"behind", copy.behind},
                           {"trouble", copy.trouble}}},
                         {"restored", nullptr},
                         {"unknown_jobs", nlohmann::json::array()},
                         {"unknown", unknown.size()}};
  if (copy.time) {
    const auto age = std::chrono::duration_cast<std::chrono::seconds>(clock.wall() - *copy.time);
    view["backup"]["age_s"] = std::max<std::int64_t>(0, age.count());
  }
  if (restored) {
    view["restored"] = {{"time", rfc3339(restored->time)},
                        {"copy_of", rfc3339(restored->copied)},
                        {"why", restored->why},
                        {"damaged", restored->damaged},
                        {"jobs_saved", restored->salvaged},
                        {"settled", restored->settled},
                        {"lately", restored_lately()}};
  }
  for (const auto& [id, places] : unknown) {
    if (view["unknown_jobs"].size() == kMostUnknownShown) break;
    view["unknown_jobs"].push_back({{"job", id.str()}, {"where", places}});
  }
  return view;
}

void Engine::Impl::make_copy(Answer done) {
  store->make_copy([this, guard = std::weak_ptr<int>(alive), done = std::move(done),
                    post_out = hooks.post](std::exception_ptr failure) {
    post_out([this, guard, done, failure] {
      if (!guard.lock()) return;
      done(failure ? wire::error_to_json(error_of(failure)) : store_view().at("backup"));
    });
  });
}

void Engine::make_copy(Answer done) {
  impl_->make_copy(std::move(done));
}

bool Engine::has_unread_jobs() const {
  return !impl_->unread.empty();
}

bool Engine::restored_lately() const {
  return impl_->restored_lately();
}

}  // namespace dtrain::head
