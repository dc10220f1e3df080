#include <algorithm>

#include "agent/head/engine/impl.hpp"
#include "agent/head/store/lineage.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

// Jobs that go on with an ended one, or start from a checkpoint that is none of their own.
namespace dtrain::head {
namespace {

bool lies_below(const fs::path& path, const std::string& folder) {
  const fs::path relative =
      path.lexically_normal().lexically_relative((fs::path(folder) / "").lexically_normal());
  return !folder.empty() && !relative.empty() && *relative.begin() != "..";
}

bool in_place(const StartCheckpoint& start) {
  return start.job.empty() && start.tree.empty();
}

}  // namespace

const Job& Engine::Impl::known_origin(const std::string& name, const char* use) const {
  const auto found = jobs.find(JobId(name));
  if (found != jobs.end() && found->second.durable) return found->second;
  throw Error(ErrorCode::not_found, "there is no job " + printable(name, false) + " to " + use)
      .with_hint("dtrain status --all lists the jobs");
}

void Engine::Impl::check_source(const StartCheckpoint& start) const {
  if (start.job.empty()) return;
  const Job& source = known_origin(start.job, "start from");
  const bool there =
      std::any_of(source.checkpoints.begin(), source.checkpoints.end(),
                  [&](const CheckpointRow& row) { return row.number == start.number; });
  if (there) return;
  throw Error(ErrorCode::not_found, "there is no " + start.str())
      .with_hint("dtrain result " + start.job + " lists its checkpoints");
}

void Engine::Impl::check_origin(const JobSpec& spec) const {
  const Job* old = nullptr;
  if (!spec.resumes.empty()) {
    old = &known_origin(spec.resumes, "go on with");
    if (!is_final(old->shown.state)) {
      throw Error(ErrorCode::conflict, spec.resumes + " is " + to_string(old->shown.state) +
                                           ": only a job that has ended can be resumed")
          .with_hint("dtrain stop " + spec.resumes + " ends it");
    }
  }
  if (!spec.start) return;
  const StartCheckpoint& start = *spec.start;
  if (old != nullptr) {
    if (old->spec.start == spec.start) return;
    throw Error(ErrorCode::invalid,
                "a job goes on with another's checkpoints or starts from one, not both");
  }
  check_source(start);
  if (in_place(start) && options.provider != "local" &&
      !lies_below(start.path, spec.storage_path)) {
    throw Error(ErrorCode::invalid, printable(start.path, false) +
                                        " cannot be read in place by nodes of other machines")
        .with_hint("a folder below storage_path can be; others are sent by content");
  }
}

std::vector<std::string> Engine::Impl::content_wanted(const JobSpec& spec) const {
  std::vector<std::string> trees;
  if (spec.content) trees = spec.content->trees();
  if (spec.start && !spec.start->tree.empty() && spec.resumes.empty()) {
    trees.push_back(spec.start->tree);
  }
  return trees;
}

// Its storage, rows and curve begin with those of the old one; then it is kept.
void Engine::Impl::take_over(Job& job) {
  std::optional<fs::path> old_storage;
  // Behind what is still done there: a checkpoint may be on its way out. In the new one nothing is.
  std::string read_from = job.spec.storage_path;
  if (const Job* old = find(JobId(job.spec.resumes))) {
    old_storage = storage(*old);
    read_from = old->spec.storage_path;
    job.metrics = old->metrics;
    job.row.metrics = wire::dump(job.metrics);
    job.row.step = old->row.step;
  }
  // What is resumed has what it began with; where that was from may have been removed since.
  std::optional<fs::path> source;
  if (!old_storage && job.spec.start && !job.spec.start->job.empty()) {
    const Job& other = *find(JobId(job.spec.start->job));
    source = checkpoint_folder(storage(other), job.spec.start->number);
    read_from = other.spec.storage_path;
  }
  work_in<Prepared>(
      read_from, StorageWork::bulk,
      [old_storage, source, start = job.spec.start, folder = storage(job),
       content = options.root.content()]() -> Prepared {
        try {
          Prepared result;
          if (old_storage) result.scan = inherit_checkpoints(*old_storage, folder);
          if (!start || !result.scan.whole.empty()) return result;
          if (in_place(*start)) {
            check_committed(start->path);
          } else if (old_storage) {
            share_start(start_folder(*old_storage), folder);
          } else if (source) {
            share_start(*source, folder);
          } else {
            unpack_start(ContentStore(content), start->tree, folder);
          }
          return result;
        } catch (const std::exception& error) {
          return {{}, as_error(error)};
        }
      },
      [this, id = job.row.id](Prepared result) { taken_over(id, std::move(result)); });
}

void Engine::Impl::taken_over(const JobId& id, Prepared result) {
  Job* job = find(id);
  if (job == nullptr) return;
  if (result.error) {
    submitted(id, std::make_exception_ptr(*result.error));
    return;
  }
  Tx tx;
  if (const Job* old = find(JobId(job->spec.resumes))) {
    if (!old->checkpoints.empty() && result.scan.whole.empty()) {
      std::string message = "no checkpoint of " + job->spec.resumes + " is whole: it has " +
                            std::to_string(old->checkpoints.size()) + " on record";
      for (const std::string& broken : result.scan.broken) message += "; " + broken;
      submitted(id, std::make_exception_ptr(Error(ErrorCode::failed, message)));
      return;
    }
    // The rows of this job's own attempts stay the newer ones.
    tx.changes.metrics_inherited.push_back({old->row.id, id, old->row.attempt});
    note(tx, *job, EventLevel::info,
         "goes on with " + job->spec.resumes +
             (result.scan.whole.empty()
                  ? ", which has no checkpoint: it begins at the start"
                  : " from step " + std::to_string(result.scan.whole.back().step)));
    reconcile(tx, *job, result.scan);
  } else {
    note(tx, *job, EventLevel::info, "starts from " + job->spec.start->str());
  }
  keep_submitted(*job, std::move(tx));
}

// What was made for a job that is not kept after all.
void Engine::Impl::drop_storage(const Job& job) {
  if (job.spec.resumes.empty() && !job.spec.start) return;
  work_in<std::optional<Error>>(
      job.spec.storage_path, StorageWork::bulk,
      [folder = storage(job)]() -> std::optional<Error> {
        try {
          remove_tree(folder);
          return std::nullopt;
        } catch (const std::exception& error) {
          return as_error(error);
        }
      },
      [](const std::optional<Error>& error) {
        if (error) log::warn("the storage of a refused job stays", {{"why", error->what()}});
      });
}

std::string Engine::Impl::start_path(const Job& job) const {
  if (in_place(*job.spec.start)) return job.spec.start->path;
  return start_folder(storage(job)).string();
}

std::optional<int> Engine::Impl::checkpoint_number(const Job& job, const std::string& path) const {
  for (const CheckpointRow& row : job.checkpoints) {
    if (row.path == path) return row.number;
  }
  if (job.spec.start && path == start_path(job)) return kStartNumber;
  return std::nullopt;
}

std::optional<fs::path> Engine::checkpoint(const JobId& id, int number) const {
  const Job* job = impl_->find(id);
  if (job == nullptr) return std::nullopt;
  if (number == kStartNumber && job->spec.start) return impl_->start_path(*job);
  for (const CheckpointRow& row : job->checkpoints) {
    if (row.number == number) return fs::path(row.path);
  }
  return std::nullopt;
}

std::vector<std::string> Engine::content_wanted(const JobSpec& spec) const {
  return impl_->content_wanted(spec);
}

}  // namespace dtrain::head
