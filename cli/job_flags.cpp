#include "cli/job_flags.hpp"

#include <algorithm>
#include <filesystem>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/values.hpp"

namespace dtrain::cli {
namespace {

constexpr std::size_t kSecretLimit = std::size_t{1} << 20;
constexpr const char* kGroup = "Job (each also a key of the job YAML)";

// A value's own complaint, with the flag in front of it.
template <typename Parse>
auto flag(const char* name, const Parse& parse) {
  try {
    return parse();
  } catch (const Error& error) {
    throw Error(ErrorCode::usage, std::string(name) + ": " + error.message())
        .with_hint(error.hint());
  }
}

std::string absolute(const std::string& path, const std::string& here) {
  return (std::filesystem::path(here) / path).lexically_normal().string();
}

std::chrono::seconds not_negative(const char* name, int value) {
  if (value < 0) throw Error(ErrorCode::usage, std::string(name) + " must not be negative");
  return std::chrono::seconds(value);
}

std::vector<std::pair<std::string, std::string>> pairs(const char* name,
                                                       const std::vector<std::string>& entries) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::string& entry : entries) {
    const std::size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw Error(ErrorCode::usage,
                  std::string(name) + " " + printable(entry, false) + ": it has no NAME= in front");
    }
    found.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return found;
}

}  // namespace

void add_job_flags(CLI::App& app, JobFlags& flags) {
  const auto option = [&](const char* names, auto& value, const char* text, const char* type) {
    return app.add_option(names, value, text)->type_name(type)->group(kGroup);
  };
  option("--name", flags.name, "Name of the job (default: the program's)", "NAME");
  option("--nnodes", flags.nnodes, "Nodes", "N|MIN:MAX");
  option("--nproc-per-node", flags.nproc_per_node, "Ranks on each node", "N|gpu|cpu");
  option("--workdir", flags.workdir, "Where the ranks run", "DIR");
  option("--env", flags.env, "Environment of the ranks; NAME alone takes the value here",
         "NAME[=VALUE]")
      ->allow_extra_args(false);
  option("--secret", flags.secrets, "A secret from the environment or a file", "NAME[=FILE]")
      ->allow_extra_args(false);
  option("--setup", flags.setup, "Shell lines to run once on each node before the ranks", "LINES");
  option("--max-restarts", flags.max_restarts, "New attempts after failures", "N");
  option("--spares", flags.spares, "Nodes kept prepared, to take the place of lost ones", "N");
  option("--cpus", flags.cpus, "CPUs for each rank", "N");
  option("--gpus", flags.gpus, "GPUs for each rank, or a part of one", "N|0.25");
  option("--memory", flags.memory, "Memory for each rank", "BYTES|4GiB");
  option("--resource", flags.resources, "What else each rank needs of a node type's resources",
         "NAME=NUMBER")
      ->allow_extra_args(false);
  option("--label-selector", flags.labels, "Which nodes will do, by the labels of their type",
         "NAME=VALUE|!VALUE|in(A,B)")
      ->allow_extra_args(false);
  option("--storage-path", flags.storage_path, "Where checkpoints go (a folder all nodes see)",
         "DIR");
  option("--num-to-keep", flags.num_to_keep, "Checkpoints to keep", "N");
  option("--score-attribute", flags.score_attribute, "The metric that says which one is best",
         "METRIC");
  option("--score-order", flags.score_order, "Which value of it is best", "max|min");
  option("--stop-grace-s", flags.stop_grace_s, "Seconds from SIGTERM to SIGKILL", "N");
  option("--timeout-s", flags.timeout_s, "Seconds the job may take, all attempts together", "N");
  option("--queue-timeout-s", flags.queue_timeout_s, "Seconds the job may wait for its turn", "N");
  option("--priority", flags.priority, "Larger goes first", "N");
  option("--on-head-lost", flags.on_head_lost, "What ranks do when the head is lost",
         "continue|stop");
  option("--hang-timeout-s", flags.hang_timeout_s, "Seconds in which some rank must get further",
         "N");
  option("--on-hang", flags.on_hang, "What follows when none does", "report|restart|nothing");
  option("--log-limit", flags.log_limit, "How much of each rank's stdout and stderr is kept",
         "BYTES|4GiB");
  option("--launcher", flags.launcher, "srun: ranks are tasks of Slurm's srun with PMIx, for MPI",
         "direct|srun");
  option("--cpu-bind", flags.cpu_bind, "cores: each rank on --cpus CPUs of its own", "none|cores");
}

void apply_job_flags(JobSpec& spec, const JobFlags& flags,
                     const std::optional<CommandWords>& command, const std::string& here,
                     const Lookup& environment) {
  if (command) {
    spec.command = command->words;
    spec.shell = command->shell;
  }
  if (flags.nnodes) {
    spec.nnodes = flag("--nnodes", [&] { return parse_node_count(*flags.nnodes); });
  }
  if (flags.nproc_per_node) {
    spec.nproc_per_node =
        flag("--nproc-per-node", [&] { return parse_procs_per_node(*flags.nproc_per_node); });
  }
  if (flags.workdir) spec.workdir = absolute(*flags.workdir, here);
  if (spec.workdir.empty()) spec.workdir = here;
  for (const std::string& entry : flags.env) {
    const std::size_t equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    if (equals != std::string::npos) {
      spec.env[name] = entry.substr(equals + 1);
    } else if (const auto value = environment(name)) {
      spec.env[name] = *value;
    } else {
      throw Error(ErrorCode::usage, "--env " + name + ": there is no such variable here")
          .with_hint("--env " + name + "=VALUE");
    }
  }
  for (const std::string& entry : flags.secrets) {
    const std::size_t equals = entry.find('=');
    SecretSpec secret{entry.substr(0, equals), std::nullopt};
    if (equals != std::string::npos) secret.file = absolute(entry.substr(equals + 1), here);
    std::erase_if(spec.secrets, [&](const SecretSpec& old) { return old.name == secret.name; });
    spec.secrets.push_back(std::move(secret));
  }
  if (flags.setup) spec.setup = *flags.setup;
  if (flags.max_restarts) spec.max_restarts = *flags.max_restarts;
  if (flags.spares) spec.spares = *flags.spares;
  if (flags.cpus) spec.resources.cpu = *flags.cpus;
  if (flags.gpus) spec.resources.gpu = flag("--gpus", [&] { return parse_gpus(*flags.gpus); });
  if (flags.memory) {
    spec.resources.memory = flag("--memory", [&] { return parse_bytes(*flags.memory); });
  }
  for (const auto& [name, value] : pairs("--resource", flags.resources)) {
    const std::string& text = value;
    spec.custom_resources[name] = flag("--resource", [&] {
      const auto amount = number_from<double>(text);
      if (!amount) throw Error(ErrorCode::usage, printable(text, false) + " is no number");
      return *amount;
    });
  }
  for (const auto& [name, text] : pairs("--label-selector", flags.labels)) {
    spec.label_selector[name] = text;
  }
  const bool asks = flags.cpus || flags.gpus || flags.memory || !flags.resources.empty();
  if (asks) spec.resources_given = true;
  if (flags.storage_path) spec.storage_path = absolute(*flags.storage_path, here);
  if (flags.num_to_keep) spec.checkpoint.num_to_keep = *flags.num_to_keep;
  if (flags.score_attribute) spec.checkpoint.score_attribute = *flags.score_attribute;
  if (flags.score_order) {
    spec.checkpoint.score_order =
        flag("--score-order", [&] { return parse_score_order(*flags.score_order); });
  }
  if (flags.stop_grace_s) spec.stop_grace = not_negative("--stop-grace-s", *flags.stop_grace_s);
  if (flags.timeout_s) spec.timeout = not_negative("--timeout-s", *flags.timeout_s);
  if (flags.queue_timeout_s) {
    spec.queue_timeout = not_negative("--queue-timeout-s", *flags.queue_timeout_s);
  }
  if (flags.priority) spec.priority = *flags.priority;
  if (flags.on_head_lost) {
    spec.on_head_lost =
        flag("--on-head-lost", [&] { return parse_on_head_lost(*flags.on_head_lost); });
  }
  if (flags.hang_timeout_s) {
    spec.hang_timeout = not_negative("--hang-timeout-s", *flags.hang_timeout_s);
  }
  if (flags.on_hang) {
    spec.on_hang = flag("--on-hang", [&] { return parse_on_hang(*flags.on_hang); });
  }
  if (flags.log_limit) {
    spec.log_limit = flag("--log-limit", [&] { return parse_bytes(*flags.log_limit); });
  }
  if (flags.launcher) {
    spec.launcher = flag("--launcher", [&] { return parse_launcher(*flags.launcher); });
  }
  if (flags.cpu_bind) {
    spec.cpu_bind = flag("--cpu-bind", [&] { return parse_cpu_bind(*flags.cpu_bind); });
  }
  if (flags.name) spec.name = *flags.name;
  if (spec.name.empty() && !spec.command.empty()) spec.name = default_job_name(spec);
}

JobWords words_of_job(const JobSpec& spec, const std::string& here) {
  JobWords words;
  // One word without blanks is taken for a file's name where it does not stand after `--`.
  JobSpec typed = spec;
  if (spec.shell && !spec.command.empty() && !is_shell_line(spec.command.front())) {
    typed.command = {"/bin/sh", "-c", spec.command.front()};
    typed.shell = false;
  }
  JobSpec plain;
  plain.name = default_job_name(typed);
  plain.workdir = here;
  nlohmann::json job = to_json(spec);
  const nlohmann::json usual = to_json(plain);
  const auto put = [&](const std::string& flag, const std::string& value) {
    words.flags.insert(words.flags.end(), {flag, value});
  };
  const auto text = [](const nlohmann::json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  // One flag for each entry of a mapping.
  const auto entries = [&](const char* key, const char* flag) {
    if (!job.contains(key)) return;
    for (const auto& [name, value] : job[key].items()) put(flag, name + "=" + text(value));
    job.erase(key);
  };
  for (const SecretSpec& secret : spec.secrets) {
    put("--secret", secret.file ? secret.name + "=" + *secret.file : secret.name);
  }
  entries("env", "--env");
  entries("custom_resources", "--resource");
  entries("label_selector", "--label-selector");
  const std::map<std::string, std::string> nested = {{"CPU", "--cpus"},
                                                     {"GPU", "--gpus"},
                                                     {"memory", "--memory"},
                                                     {"num_to_keep", "--num-to-keep"},
                                                     {"score_attribute", "--score-attribute"},
                                                     {"score_order", "--score-order"}};
  for (const char* key : {"resources", "checkpoint"}) {
    if (!job.contains(key)) continue;
    const nlohmann::json of_usual = usual.value(key, nlohmann::json::object());
    for (const auto& [name, value] : job[key].items()) {
      const bool is_usual = of_usual.contains(name) && of_usual[name] == value;
      if (nested.contains(name) && !is_usual) put(nested.at(name), text(value));
    }
  }
  // What has no flag of its own, what has been said, and what is no part of what a person asks for.
  for (const char* key : {"command", "shell", "content", "secrets", "resources", "resources_given",
                          "checkpoint", "trial", "resumes", "start", "after"}) {
    job.erase(key);
  }
  for (const auto& [key, value] : job.items()) {
    if (value == usual.value(key, nlohmann::json()) || value.is_null()) continue;
    if (value.is_structured() || key == "bundle") {
      words.unsaid.push_back(key);
      continue;
    }
    std::string flag = "--" + key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    put(flag, text(value));
  }
  if (!typed.shell) words.command.emplace_back("--");
  words.command.insert(words.command.end(), typed.command.begin(), typed.command.end());
  return words;
}

std::map<std::string, std::string> read_secrets(const JobSpec& spec, const Lookup& environment) {
  std::map<std::string, std::string> values;
  std::vector<std::string> missing;
  for (const SecretSpec& secret : spec.secrets) {
    std::string value;
    if (secret.file) {
      try {
        value = read_file(*secret.file, kSecretLimit);
      } catch (Error& error) {
        error.while_doing("reading secret " + secret.name);
        throw;
      }
      // Editors end files with a newline that no token has.
      if (value.ends_with('\n')) value.pop_back();
    } else if (const auto found = environment(secret.name)) {
      value = *found;
    } else {
      missing.push_back(secret.name);
      continue;
    }
    if (value.find('\0') != std::string::npos) {
      throw Error(ErrorCode::invalid, "the value of secret " + secret.name + " has a NUL in it");
    }
    if (!is_utf8(value)) {
      throw Error(ErrorCode::invalid, "the value of secret " + secret.name + " is not UTF-8")
          .with_hint("give it as base64, and let the program decode it");
    }
    values[secret.name] = std::move(value);
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::invalid,
                (missing.size() == 1 ? "secret " + missing.front() + " is"
                                     : "secrets " + join(missing, ", ") + " are") +
                    " not in the environment of this command")
        .with_hint("export " + missing.front() + "=…, or name a file: --secret " + missing.front() +
                   "=FILE");
  }
  return values;
}

}  // namespace dtrain::cli
