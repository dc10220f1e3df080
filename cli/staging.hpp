#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <string>

#include "cli/context.hpp"
#include "launcher/files/bundle.hpp"
#include "launcher/files/snapshot.hpp"
#include "launcher/spec/job_spec.hpp"

// A job's files on their way to a cluster: its workdir as it is now, and its program's libraries.
namespace dtrain::cli {

// What the job needs, by sum.
struct StagedFiles {
  struct Blob {
    fs::path file;     // empty: `text`
    std::string text;  // of a tree
    std::uint64_t size = 0;
  };
  std::map<std::string, Blob> blobs;
};

// Jobs of this cluster are sent; those of a local one run in place (DTRAIN_STAGE=1 sends them too).
bool sends_files(const wire::ApiClient& client, const std::string& cluster);

// The program that a job's ranks run, as a file here; absent when it is none of ours to look at: a
// line for the shell that begins with something else, or a name that is not found.
std::optional<fs::path> program_of(const JobSpec& spec, const std::string& path_variable);

BundleOptions bundle_options();

// dtrain-profiler, with the libraries that nodes may lack. Throws Error(not_found) where it, or one
// that it needs, is not here.
BundlePlan profiler_plan(FileFactsCache& cache);

// Reads what is to be sent and fills in `spec.content`; a program that is named by its whole path
// is named relative to its workdir then. Throws Error(failed) for `stop`, between two files of the
// workdir.
StagedFiles stage_job(const Context& context, JobSpec& spec, FileFactsCache& cache,
                      const std::stop_token& stop = {});

// Adds a tree and what it names, each by where it is read; gives the tree's name.
std::string add_tree(StagedFiles& files, const ContentTree& tree,
                     const std::map<std::string, fs::path>& sources);

// Sends what the head lacks of it. Throws Error(conflict) or Error(failed) when a file changed
// meanwhile: to be staged again; Error(failed) also for `stop`.
void send_files(const Context& context, const wire::ApiClient& client, const StagedFiles& files,
                bool zstd, const std::stop_token& stop = {});

}  // namespace dtrain::cli
