#include "launcher/spec/job_spec.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "launcher/core/ids.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/checks.hpp"
#include "launcher/spec/contract.hpp"
#include "launcher/spec/limits.hpp"
#include "launcher/spec/values.hpp"

namespace dtrain {

namespace spec {
namespace {

Path index(Path path, std::size_t i) {
  return with(std::move(path), "[" + std::to_string(i) + "]");
}

void check_command(const JobSpec& spec, Checks& checks) {
  const Path key{"command"};
  if (spec.command.empty()) {
    checks.add(key, "is missing: what each rank runs",
               "for example: command: [./train, --epochs, 3]");
    return;
  }
  if (spec.shell) {
    if (spec.command.size() != 1) checks.add(key, "a shell command is one text");
    const std::string& line = spec.command.front();
    if (checks.text(key, line, limits::kArgumentLength) &&
        line.find_first_not_of(" \t\r\n") == std::string::npos) {
      checks.add(key, "is empty", "for example: command: ./train --epochs 3");
    }
    return;
  }
  if (spec.command.front().empty()) {
    checks.add(index({"command"}, 0), "is empty: the first word is the program");
  }
  if (spec.command.size() > limits::kArguments) {
    checks.add(key, "has more than " + std::to_string(limits::kArguments) + " words");
    return;
  }
  std::size_t total = 0;
  for (std::size_t i = 0; i < spec.command.size(); ++i) {
    checks.text(index({"command"}, i), spec.command[i], limits::kArgumentLength);
    total += spec.command[i].size() + 1;
  }
  if (total > limits::kArgumentsLength) {
    checks.add(key, "is " + human_bytes(total) + " long; at most " +
                        human_bytes(limits::kArgumentsLength) + " are possible");
  }
}

void check_variable_name(const Path& path, const std::string& name, Checks& checks) {
  if (!valid_environment_name(name)) {
    checks.add(path, shown(name) +
                         " is no name of an environment variable: letters, digits and "
                         "_, not beginning with a digit");
  } else if (contract::sets(name)) {
    checks.add(path, "is set by dtrain for each rank, so it cannot be set here",
               name == "CUDA_VISIBLE_DEVICES"
                   ? "ask for GPUs with resources: {GPU: 1}; none are given with GPU: 0"
                   : "docs/rank_contract.md lists these names");
  }
}

void check_environment(const JobSpec& spec, Checks& checks) {
  if (spec.env.size() > limits::kVariables) {
    checks.add({"env"}, "has more than " + std::to_string(limits::kVariables) + " variables");
    return;
  }
  std::size_t total = 0;
  for (const auto& [name, value] : spec.env) {
    const Path path{"env", name};
    check_variable_name(path, name, checks);
    checks.text(path, value, limits::kArgumentLength - std::min<std::size_t>(name.size() + 1, 256));
    total += name.size() + value.size() + 2;
  }
  if (total > limits::kArgumentsLength) {
    checks.add({"env"}, "is " + human_bytes(total) + " long; at most " +
                            human_bytes(limits::kArgumentsLength) + " are possible");
  }
}

void check_secrets(const JobSpec& spec, Checks& checks) {
  if (spec.secrets.size() > limits::kVariables) {
    checks.add({"secrets"}, "has more than " + std::to_string(limits::kVariables) + " names");
    return;
  }
  std::set<std::string> seen;
  for (const SecretSpec& secret : spec.secrets) {
    const Path path{"secrets", secret.name};
    // A wrong "name" may well be NAME=value: it is not repeated in the message.
    if (!valid_environment_name(secret.name)) {
      checks.add({"secrets"},
                 "holds something that is no name of an environment variable: letters, digits and "
                 "_, not beginning with a digit",
                 "secrets: [NAME] takes the value from the environment of dtrain submit");
      continue;
    }
    check_variable_name(path, secret.name, checks);
    if (!seen.insert(secret.name).second) checks.add(path, "is there twice");
    if (spec.env.contains(secret.name)) checks.add(path, "is also in env");
    if (secret.file && !secret.file->empty()) {
      checks.absolute({"secrets", secret.name, "file"}, *secret.file);
    }
  }
}

void check_resources(const JobSpec& spec, Checks& checks) {
  const Resources& resources = spec.resources;
  if (resources.cpu) checks.range({"resources", "CPU"}, *resources.cpu, 0, limits::kCpus);
  if (resources.gpu) {
    checks.range({"resources", "GPU"}, static_cast<double>(resources.gpu->parts) / GpuAmount::kOne,
                 0, limits::kGpus);
    if (spec.nproc_per_node.kind == ProcsKind::gpu && *resources.gpu == 0) {
      checks.add({"resources", "GPU"}, "is 0, but nproc_per_node is gpu: one rank per GPU");
    }
  }
  if (spec.custom_resources.size() > limits::kVariables) {
    checks.add({"resources"}, "has more than " + std::to_string(limits::kVariables) + " names");
    return;
  }
  for (const auto& [name, amount] : spec.custom_resources) {
    const Path path{"resources", name};
    if (!checks.text(path, name, limits::kMetricNameLength)) continue;
    for (const char* known : {"CPU", "GPU", "memory"}) {
      if (lower_case(name) == lower_case(known)) {
        checks.add(path, "is no name of your own", std::string("did you mean ") + known + "?");
      }
    }
    checks.range(path, amount, 0, static_cast<double>(limits::kMemory));
  }
  if (resources.memory && (*resources.memory == 0 || *resources.memory > limits::kMemory)) {
    checks.add({"resources", "memory"},
               "must be 1 byte to 1 EiB, not " + std::to_string(*resources.memory));
  }
}

void check_cpu_bind(const JobSpec& spec, Checks& checks) {
  if (spec.cpu_bind == CpuBind::none) return;
  const std::optional<double>& cpus = spec.resources.cpu;
  if (cpus && *cpus >= 1 && *cpus == std::floor(*cpus)) return;
  checks.add({"cpu_bind"},
             "is cores, so that resources must say how many CPUs each rank has: a whole number" +
                 (cpus ? ", not " + number_text(*cpus) : std::string()),
             "for example: resources: {CPU: 2}");
}

void check_checkpoint(const CheckpointSpec& checkpoint, Checks& checks) {
  if (checkpoint.num_to_keep) {
    checks.range({"checkpoint", "num_to_keep"}, *checkpoint.num_to_keep, 1, limits::kKept);
  }
  if (!checkpoint.score_attribute) return;
  const Path path{"checkpoint", "score_attribute"};
  const std::string& name = *checkpoint.score_attribute;
  if (!checks.text(path, name, limits::kMetricNameLength)) return;
  if (name.empty()) {
    checks.add(path, "is empty: the name of a metric that the job reports",
               "for example: score_attribute: val_accuracy");
  } else if (printable(name, false) != name || name.find('\t') != std::string::npos) {
    checks.add(path, shown(name) + " is no name of a metric: printable characters only");
  }
}

bool sum_or_nothing(const std::string& text) {
  return text.empty() ||
         (text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos);
}

void check_content(const JobContent& content, Checks& checks) {
  if (!sum_or_nothing(content.workdir_tree) || !sum_or_nothing(content.bundle_tree) ||
      !sum_or_nothing(content.profiler_tree)) {
    checks.add({"content"}, "names a tree by what is no SHA-256");
  }
  const std::string& program = content.program;
  const bool in_bin = program.starts_with("bin/") && program.size() > 4 &&
                      program.find('/', 4) == std::string::npos && program != "bin/.." &&
                      program != "bin/." && !content.bundle_tree.empty();
  if (!program.empty() && !in_bin) {
    checks.add({"content"}, "names a program that lies elsewhere than in the bundle");
  }
  checks.text({"content"}, program, limits::kArgumentLength);
  checks.text({"content"}, content.glibc, limits::kMetricNameLength);
  checks.text({"content"}, content.glibc_of, limits::kArgumentLength);
}

void check_labels(const JobSpec& spec, Checks& checks) {
  if (spec.label_selector.size() > limits::kVariables) {
    checks.add({"label_selector"},
               "has more than " + std::to_string(limits::kVariables) + " labels");
    return;
  }
  for (const auto& [name, rule] : spec.label_selector) {
    const Path path{"label_selector", name};
    if (!checks.text(path, name, limits::kMetricNameLength)) continue;
    if (!checks.text(path, rule, limits::kArgumentLength)) continue;
    try {
      parse_label_rule(rule);
    } catch (const Error& error) {
      checks.add(path, error.message(), error.hint());
    }
  }
}

void check_restart(const RestartSpec& restart, Checks& checks) {
  if (restart.on && restart.on->empty()) {
    checks.add({"restart", "on"}, "names no failure; max_restarts: 0 is for none");
  }
  const std::vector<std::string> on = restart.on.value_or(std::vector<std::string>());
  for (std::size_t i = 0; i < on.size(); ++i) {
    try {
      check_failure(on[i]);
    } catch (const Error& error) {
      checks.add(index({"restart", "on"}, i), error.message(), error.hint());
    }
  }
  for (std::size_t i = 0; i < restart.count.size(); ++i) {
    const std::string& each = restart.count[i];
    if (each == "node_lost" || each == "preempted") continue;
    checks.add(index({"restart", "count"}, i),
               "must be node_lost or preempted, not " + shown(each));
  }
  if (restart.window) {
    checks.range({"restart", "window_s"}, static_cast<double>(restart.window->count()), 1,
                 limits::kTimeoutSeconds);
  }
  checks.range({"restart", "backoff_s"}, static_cast<double>(restart.backoff.count()), 0,
               limits::kBackoffSeconds);
}

void check_origin(const JobSpec& spec, Checks& checks) {
  if (!spec.resumes.empty() && !valid_name(spec.resumes)) {
    checks.add({"resumes"}, shown(spec.resumes) + " is no job id");
  }
  if (spec.trial && !valid_name(spec.trial->search)) {
    checks.add({"trial"}, shown(spec.trial->search) + " is no id of a search");
  }
  if (spec.trial) {
    checks.text({"trial"}, spec.trial->params,
                limits::kArgumentLength - std::string_view("DTRAIN_PARAMS=").size());
  }
  if (!spec.start) return;
  const StartCheckpoint& start = *spec.start;
  if (start.job.empty()) {
    checks.absolute({"start", "path"}, start.path);
  } else if (!valid_name(start.job) || start.number < 0) {
    checks.add({"start"}, shown(start.job) + " is no job id, or its number is negative");
  }
  if (!sum_or_nothing(start.tree)) {
    checks.add({"start", "tree"}, "names a tree by what is no SHA-256");
  }
}

}  // namespace

std::vector<Problem> problems_of(const JobSpec& spec) {
  Checks checks;
  checks.name({"name"}, spec.name, "name: mnist");
  check_command(spec, checks);
  checks.absolute({"workdir"}, spec.workdir);
  check_environment(spec, checks);
  check_secrets(spec, checks);
  checks.text({"setup"}, spec.setup, limits::kScriptLength);
  checks.range({"nnodes"}, spec.nnodes.min, 1, limits::kNodes);
  if (spec.nnodes.max != spec.nnodes.min) {
    checks.range({"nnodes"}, spec.nnodes.max, 1, limits::kNodes);
  }
  if (spec.nnodes.min > spec.nnodes.max) {
    checks.add({"nnodes"}, "the smaller number comes first, not " + to_string(spec.nnodes));
  }
  if (spec.nproc_per_node.kind == ProcsKind::number) {
    checks.range({"nproc_per_node"}, spec.nproc_per_node.number, 1, limits::kProcsPerNode);
  }
  check_origin(spec, checks);
  if (spec.content) check_content(*spec.content, checks);
  checks.range({"max_restarts"}, spec.max_restarts, 0, limits::kRestarts);
  check_restart(spec.restart, checks);
  checks.range({"spares"}, spec.spares, 0, limits::kSpares);
  if (spec.spares > 0 && spec.launcher == Launcher::srun) {
    checks.add({"spares"}, "cannot be had with launcher: srun, whose step has its nodes");
  }
  check_resources(spec, checks);
  check_cpu_bind(spec, checks);
  check_labels(spec, checks);
  if (!spec.storage_path.empty()) checks.absolute({"storage_path"}, spec.storage_path);
  check_checkpoint(spec.checkpoint, checks);
  checks.range({"stop_grace_s"}, static_cast<double>(spec.stop_grace.count()), 0,
               limits::kGraceSeconds);
  if (spec.timeout) {
    checks.range({"timeout_s"}, static_cast<double>(spec.timeout->count()), 1,
                 limits::kTimeoutSeconds);
  }
  if (spec.queue_timeout) {
    checks.range({"queue_timeout_s"}, static_cast<double>(spec.queue_timeout->count()), 0,
                 limits::kTimeoutSeconds);
  }
  if (spec.hang_timeout) {
    checks.range({"hang_timeout_s"}, static_cast<double>(spec.hang_timeout->count()), 1,
                 limits::kTimeoutSeconds);
  }
  if (spec.log_limit && *spec.log_limit != 0 &&
      (*spec.log_limit < limits::kLeastLog || *spec.log_limit > limits::kMemory)) {
    checks.add({"log_limit"},
               "must be " + human_bytes(limits::kLeastLog) + " to 1 EiB, not " +
                   std::to_string(*spec.log_limit) + " bytes",
               "log_limit: 0 keeps all");
  }
  checks.range({"priority"}, spec.priority, -limits::kPriority, limits::kPriority);
  if (spec.after.size() > limits::kDependencies) {
    checks.add({"after"}, "has more than " + std::to_string(limits::kDependencies) + " jobs");
  } else {
    for (std::size_t i = 0; i < spec.after.size(); ++i) {
      if (!valid_name(spec.after[i])) {
        checks.add(index({"after"}, i), shown(spec.after[i]) + " is no job id");
      }
    }
  }
  return checks.take();
}

}  // namespace spec

std::vector<Error> validate(const JobSpec& spec) {
  return spec::to_errors(spec::problems_of(spec));
}

int JobSpec::bound_cpus() const {
  return cpu_bind == CpuBind::none ? 0 : static_cast<int>(resources.cpu.value_or(0));
}

int JobSpec::rank_threads() const {
  if (!resources.cpu && !trial) return 0;
  return std::max(1, static_cast<int>(resources.cpu.value_or(1)));
}

std::uint64_t JobSpec::kept_log() const {
  return log_limit.value_or(limits::kLog);
}

std::string StartCheckpoint::str() const {
  return job.empty() ? path : "checkpoint " + std::to_string(number) + " of " + job;
}

std::vector<std::string> JobContent::trees() const {
  std::vector<std::string> trees;
  for (const std::string& tree : {workdir_tree, bundle_tree, profiler_tree}) {
    if (!tree.empty()) trees.push_back(tree);
  }
  return trees;
}

}  // namespace dtrain
