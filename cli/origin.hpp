#pragma once

#include <optional>
#include <string>

#include "cli/context.hpp"
#include "cli/staging.hpp"
#include "launcher/spec/job_spec.hpp"

namespace CLI {
class App;
}

// Jobs that do not begin at nothing: `submit --resume`, which goes on with an ended job, and
// `--from-checkpoint`, a warm start.
namespace dtrain::cli {

struct OriginFlags {
  std::string resume;           // a job as typed; empty: not given
  std::string from_checkpoint;  // JOB[:N] or PATH as typed; empty: not given
};

void add_origin_flags(CLI::App& app, OriginFlags& flags);

// The job that `reference` means and what it was: `spec` is ready to be changed and submitted, its
// `content` what the head had of it. Throws Error(conflict) for one that has not ended.
struct ResumedJob {
  std::string id;
  JobSpec spec;
};
ResumedJob job_to_resume(const Context& context, const wire::ApiClient& client,
                         const std::string& reference);
// What `changed` needs of the content of the one that it goes on with: the same when the ranks run
// the same program in the same folder, else none, so that all is sent anew.
void keep_content_if_same(JobSpec& changed, const JobSpec& old);

// What --from-checkpoint says, where that is a folder, taken from `here` when it is a relative
// path: verified with all its sums. Absent: it names a job. Throws Error that names the checkpoints
// that there are; so does the next one.
std::optional<StartCheckpoint> start_from_folder(const std::string& text, const std::string& here);
// Where it names a job.
StartCheckpoint start_from_job(const wire::ApiClient& client, const std::string& text,
                               const std::string& here);
// Whether the start's folder must be sent to a cluster to which files go: nodes that see the job's
// storage_path read what is below it in place.
bool sends_start(const JobSpec& spec);
// Adds the start's folder to what is sent, and its tree to the spec.
void stage_start(StagedFiles& files, JobSpec& spec, FileFactsCache& cache);

}  // namespace dtrain::cli
