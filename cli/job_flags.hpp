#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_words.hpp"
#include "launcher/spec/job_spec.hpp"

namespace CLI {
class App;
}

namespace dtrain::cli {

// A job's keys as flags, over a job YAML or without one.
struct JobFlags {
  std::optional<std::string> name;
  std::optional<std::string> nnodes;
  std::optional<std::string> nproc_per_node;
  std::optional<std::string> workdir;
  std::vector<std::string> env;      // NAME=VALUE, or NAME: the CLI's own value
  std::vector<std::string> secrets;  // NAME, or NAME=FILE
  std::optional<std::string> setup;
  std::optional<int> max_restarts;
  std::optional<int> spares;
  std::optional<double> cpus;
  std::optional<std::string> gpus;
  std::optional<std::string> memory;
  std::vector<std::string> resources;  // NAME=NUMBER
  std::vector<std::string> labels;     // NAME=RULE
  std::optional<std::string> storage_path;
  std::optional<int> num_to_keep;
  std::optional<std::string> score_attribute;
  std::optional<std::string> score_order;
  std::optional<int> stop_grace_s;
  std::optional<int> timeout_s;
  std::optional<int> queue_timeout_s;
  std::optional<int> priority;
  std::optional<std::string> on_head_lost;
  std::optional<int> hang_timeout_s;
  std::optional<std::string> on_hang;
  std::optional<std::string> log_limit;
  std::optional<std::string> launcher;
  std::optional<std::string> cpu_bind;
};

void add_job_flags(CLI::App& app, JobFlags& flags);

using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

// What the flags say wins over what the spec has; `command`, when given, replaces its command.
// Relative paths are relative to `here`. A spec without a name gets one from its program. Throws
// Error(usage) naming the flag.
void apply_job_flags(JobSpec& spec, const JobFlags& flags,
                     const std::optional<CommandWords>& command, const std::string& here,
                     const Lookup& environment);

// The other way round: the flags that make this job, typed in `here`, and its command as submit
// takes it. Keys that no flag has, and the job has otherwise than by default, go to `unsaid`.
struct JobWords {
  std::vector<std::string> flags;
  std::vector<std::string> command;
  std::vector<std::string> unsaid;
};
JobWords words_of_job(const JobSpec& spec, const std::string& here);

// The values of the spec's secrets, from the environment or their files, for the submit request
// alone. Throws Error(invalid) naming the secret; never a value.
std::map<std::string, std::string> read_secrets(const JobSpec& spec, const Lookup& environment);

}  // namespace dtrain::cli
