#include <sys/statvfs.h>

#include <algorithm>

#include "agent/head/engine/impl.hpp"
#include "agent/head/engine/retention.hpp"
#include "launcher/core/log.hpp"
#include "launcher/files/stored_checkpoints.hpp"
#include "launcher/wire/json.hpp"

// The head's disk: how full it is, and what the user's settings let go.
namespace dtrain::head {
namespace {

constexpr std::chrono::hours kHousekeepingEvery{1};  // sizes of all that jobs left
constexpr std::chrono::minutes kLookAtDiskEvery{1};  // one statvfs(2)

constexpr std::chrono::hours kForgottenShown{24 * 7};
constexpr std::size_t kMostForgottenShown = 100;

DiskUse measure(const fs::path& root) {
  DiskUse disk;
  struct statvfs status {};
  if (::statvfs(root.c_str(), &status) != 0) return disk;
  disk.total = std::uint64_t{status.f_blocks} * status.f_frsize;
  disk.free = std::uint64_t{status.f_bavail} * status.f_frsize;
  return disk;
}

}  // namespace

// A head that died between forgetting a job and deleting its files: they go now. Only what is
// named by a job that was forgotten is touched: a head whose database was put aside, or is a copy
// from before, knows nothing of jobs whose results are worth something.
void Engine::Impl::finish_deletions() {
  if (forgotten.empty()) return;
  std::set<std::string> names;
  for (const auto& [id, row] : forgotten) names.insert(id.str());
  tidy.add([names = std::move(names), root = options.root] {
    for (const fs::path& folder : {root.storage(), root.mirror()}) {
      std::error_code failed;
      std::vector<fs::path> left;
      for (fs::directory_iterator at(folder, failed), end; !failed && at != end;
           at.increment(failed)) {
        if (names.contains(at->path().filename().string())) left.push_back(at->path());
      }
      if (failed && failed != std::errc::no_such_file_or_directory) {
        log::warn("it is not known what is left of jobs that were removed",
                  {{"path", folder.string()}, {"why", failed.message()}});
      }
      for (const fs::path& path : left) {
        try {
          remove_tree(path);
          log::info("files of a job that was removed are gone", {{"path", path.string()}});
        } catch (const Error& error) {
          log::warn("files of a job that was removed stay", {{"why", error.what()}});
        }
      }
    }
  });
}

// What a node has kept of jobs that were forgotten; of one that may still run there not yet: an
// older agent would lose its ranks. Of a job that is not known at all nothing is touched, as in
// finish_deletions().
void Engine::Impl::clear_forgotten(const NodeId& node, const std::vector<JobId>& on_disk) {
  const auto found = nodes.find(node);
  for (const JobId& id : on_disk) {
    if (!forgotten.contains(id) || jobs.contains(id)) continue;
    if (found != nodes.end()) {
      const auto left = found->second.leftovers.lower_bound({id, 0});
      if (left != found->second.leftovers.end() && left->first == id) continue;
    }
    nodes_out.forget(node, id);
  }
}

// It has ended there. Whether it was one.
bool Engine::Impl::drop_leftover(Node& node, const JobId& job, int attempt) {
  if (node.leftovers.erase({job, attempt}) == 0) return false;
  clear_forgotten(node.row.node, {job});
  return true;
}

// Those that went by the user's settings, newest first, for whoever looks at the cluster.
nlohmann::json Engine::Impl::forgotten_lately() const {
  std::vector<const ForgottenRow*> rows;
  for (const auto& [id, row] : forgotten) {
    if (!row.reason.empty() && clock.wall() - row.time < kForgottenShown) rows.push_back(&row);
  }
  std::sort(rows.begin(), rows.end(),
            [](const ForgottenRow* a, const ForgottenRow* b) { return a->time > b->time; });
  nlohmann::json list = nlohmann::json::array();
  for (const ForgottenRow* row : rows) {
    if (list.size() == kMostForgottenShown) break;
    list.push_back(
        {{"job", row->job.str()}, {"time", rfc3339(row->time)}, {"reason", row->reason}});
  }
  return list;
}

// Marks those of them that are committed here; others are of no storage that goes with the job.
void Engine::Impl::pulled(const Job& job, const std::set<int>& numbers, Answer done) {
  std::set<int> known;
  for (const CheckpointRow& row : job.checkpoints) {
    if (numbers.contains(row.number)) known.insert(row.number);
  }
  nlohmann::json answer{{"job", job.row.id.str()}, {"pulled", known}};
  if (known.empty() || storage(job) != options.root.storage(job.row.id)) {
    done(std::move(answer));
    return;
  }
  work<std::optional<Error>>(
      quick,
      [folder = checkpoints_folder(storage(job)), known]() -> std::optional<Error> {
        try {
          mark_pulled(folder, known);
          return std::nullopt;
        } catch (const std::exception& error) {
          return as_error(error);
        }
      },
      [done = std::move(done), answer = std::move(answer)](const std::optional<Error>& failed) {
        done(failed ? wire::error_to_json(*failed) : answer);
      });
}

void Engine::pulled(const JobId& id, const std::set<int>& numbers, Answer done) {
  impl_->pulled(impl_->known(id), numbers, std::move(done));
}

// In one walk over what is open, for any number of jobs that have ended.
Engine::Impl::Holds Engine::Impl::holds() const {
  Holds all;
  for (const auto& [id, search] : live_searches) {
    if (const auto& start = search->state->spec().job.start) {
      all.emplace(start->job,
                  "trials of " + id.str() + ", which has not ended, start from " + start->job);
    }
  }
  const auto comes_after = [&](const JobId& id, const Job& job) {
    for (const std::string& before : job.spec.after) {
      all.emplace(before, id.str() + " waits to come after " + before);
    }
  };
  for (const auto& [id, job] : live) comes_after(id, *job);
  for (const JobId& id : submitting) {
    const Job& job = jobs.at(id);
    comes_after(id, job);
    const std::string why = id.str() + " is being submitted and takes over from it";
    if (!job.spec.resumes.empty()) all.emplace(job.spec.resumes, why);
    if (job.spec.start) all.emplace(job.spec.start->job, why);
  }
  return all;
}

// Why the job cannot be removed now: another needs it, or its files.
std::optional<std::string> Engine::Impl::held_by(const Job& job, const Holds& holds) const {
  if (auto why = held_by_search(job)) return why;
  const auto found = holds.find(job.row.id);
  return found == holds.end() ? std::nullopt : std::optional(found->second);
}

void Engine::Impl::look_at_disk() {
  next_disk_look = clock.now() + kLookAtDiskEvery;
  if (disk_look_runs) return;  // a disk that hangs
  disk_look_runs = true;
  work<DiskUse>(
      tidy, [root = options.root.root] { return measure(root); },
      [this](DiskUse now) {
        disk_look_runs = false;
        disk.total = now.total;
        disk.free = now.free;
      });
}

void Engine::Impl::housekeeping() {
  next_housekeeping = clock.now() + kHousekeepingEvery;
  if (housekeeping_runs) return;
  struct Folder {
    EndedJob job;
    fs::path storage;
    fs::path mirror;
  };
  const bool may_forget = options.storage.retention_days || options.storage.retention_size;
  const Holds held = may_forget ? holds() : Holds();
  const Monotonic now = clock.now();
  std::vector<Folder> ended;
  for (const auto& [id, job] : jobs) {
    if (!is_final(job.shown.state) || !job.row.ended) continue;
    ended.push_back({{id, moments.of(*job.row.ended, now), 0, may_forget && held_by(job, held)},
                     options.root.storage(id),
                     options.root.mirror(id)});
  }
  housekeeping_runs = true;
  struct Found {
    std::shared_ptr<std::deque<Forgetting>> old;
    std::uint64_t bytes = 0;
  };
  work<Found>(
      tidy,
      [ended = std::move(ended), now, settings = options.storage]() mutable {
        Found found;
        std::vector<EndedJob> list;
        for (Folder& folder : ended) {
          folder.job.bytes = folder_bytes(folder.storage) + folder_bytes(folder.mirror);
          found.bytes += folder.job.bytes;
          list.push_back(folder.job);
        }
        const std::vector<Forgetting> old = jobs_to_forget(std::move(list), now, settings);
        found.old = std::make_shared<std::deque<Forgetting>>(old.begin(), old.end());
        return found;
      },
      [this, settings = options.storage](const Found& found) {
        disk.ended_jobs = found.bytes;
        forget_by_setting(found.old, settings);
      });
}

// Each when the one before it is durable, and its files are on their way out. Years of jobs have
// millions of rows: in one transaction they would hold up all else that is to be durable, and need
// room for all of them at once on a disk that they may have filled.
void Engine::Impl::forget_by_setting(const std::shared_ptr<std::deque<Forgetting>>& old,
                                     const StorageSpec& settings) {
  while (!old->empty() && settings == options.storage) {
    const Forgetting what = std::move(old->front());
    old->pop_front();
    Job* job = find(what.job);
    if (job == nullptr) continue;
    try {
      remove(*job, what.reason, holds(),
             [this, old, settings](const nlohmann::json&) { forget_by_setting(old, settings); });
      log::warn("a job is forgotten, as `retention` says",
                {{"job", what.job.str()}, {"why", what.reason}});
      return;
    } catch (const Error& error) {
      log::info("an old job stays", {{"job", what.job.str()}, {"why", error.what()}});
    }
  }
  housekeeping_runs = false;
  if (settings == options.storage) return;
  next_housekeeping = clock.now();  // what was found is by settings that are no more
  rearm();
}

void Engine::Impl::set_storage(const StorageSpec& settings) {
  if (settings == options.storage) return;
  options.storage = settings;
  next_housekeeping = clock.now();
  rearm();
}

std::set<std::string> Engine::content_trees() const {
  std::set<std::string> trees;
  for (const auto& [id, job] : impl_->jobs) {
    // Of a checkpoint that was sent, until it has been unpacked.
    if (!job.durable && job.spec.start && !job.spec.start->tree.empty()) {
      trees.insert(job.spec.start->tree);
    }
    if (!job.spec.content) continue;
    for (const std::string& tree : job.spec.content->trees()) trees.insert(tree);
  }
  for (const auto& [id, search] : impl_->searches) {
    trees.insert(search.trees.begin(), search.trees.end());
  }
  return trees;
}

std::vector<NodeId> Engine::nodes() const {
  std::vector<NodeId> list;
  for (const auto& [id, node] : impl_->nodes) {
    if (counts(node.row.state)) list.push_back(id);
  }
  return list;
}

bool Engine::has_jobs() const {
  return !impl_->live.empty() || !impl_->submitting.empty() || !impl_->live_searches.empty();
}

std::optional<JobId> Engine::open_job() const {
  if (!impl_->live.empty()) return impl_->live.begin()->first;
  const std::vector<JobId> open = open_jobs();
  return open.empty() ? std::nullopt : std::optional(open.front());
}

std::vector<JobId> Engine::open_jobs() const {
  std::vector<JobId> open;
  for (const auto& [id, job] : impl_->live) open.push_back(id);
  for (const auto& [id, is_open] : impl_->unread) {
    if (is_open) open.push_back(id);
  }
  return open;
}

std::map<NodeId, Engine::NodeJobs> Engine::jobs_by_node() const {
  std::map<NodeId, NodeJobs> all;
  for (const auto& [id, is_open] : impl_->unread) {
    for (const auto& [node, unused] : impl_->nodes) {
      if (is_open) all[node].open.insert(id);
    }
  }
  for (const auto& [id, job] : impl_->live) {
    for (const Attempt& attempt : job->attempts) {
      for (const Share& share : attempt.shares) {
        NodeJobs& there = all[share.row.node];
        there.open.insert(id);
        if (share.row.state == ShareState::running) there.running.emplace(id, attempt.row.attempt);
      }
    }
  }
  return all;
}

bool Engine::runs(const NodeId& node, const JobId& job, int attempt) const {
  const auto found = impl_->live.find(job);
  const Attempt* its = found == impl_->live.end() ? nullptr : found->second->find_attempt(attempt);
  const Share* share = its == nullptr ? nullptr : its->share(node);
  return share != nullptr && share->row.state == ShareState::running;
}

bool Engine::is_open(const JobId& job) const {
  const auto unread = impl_->unread.find(job);
  return impl_->live.contains(job) || (unread != impl_->unread.end() && unread->second);
}

void Engine::take_no_jobs(const std::string& why) {
  impl_->closed = why;
  for (const auto& [id, search] : impl_->live_searches) impl_->post_look(id);
}

bool Engine::is_gone(const NodeId& node) const {
  const auto found = impl_->nodes.find(node);
  return found != impl_->nodes.end() && found->second.row.state == NodeState::gone;
}

bool Engine::has_seen(const NodeId& node) const {
  return impl_->nodes.contains(node);
}

const StorageSpec& Engine::storage() const {
  return impl_->options.storage;
}

void Engine::set_storage(const StorageSpec& settings) {
  impl_->set_storage(settings);
}

}  // namespace dtrain::head
