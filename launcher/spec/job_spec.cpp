#include "launcher/spec/job_spec.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/core/ids.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/checks.hpp"
#include "launcher/spec/limits.hpp"
#include "launcher/spec/values.hpp"

namespace dtrain {

using nlohmann::json;

namespace spec {
namespace {

Path index(const char* key, std::size_t i) {
  return {key, "[" + std::to_string(i) + "]"};
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
    checks.add(index("command", 0), "is empty: the first word is the program");
  }
  if (spec.command.size() > limits::kArguments) {
    checks.add(key, "has more than " + std::to_string(limits::kArguments) + " words");
    return;
  }
  std::size_t total = 0;
  for (std::size_t i = 0; i < spec.command.size(); ++i) {
    checks.text(index("command", i), spec.command[i], limits::kArgumentLength);
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
  } else if (reserved_environment_name(name)) {
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
    checks.range({"resources", "GPU"}, *resources.gpu, 0, limits::kGpus);
    if (spec.nproc_per_node.kind == ProcsKind::gpu && *resources.gpu == 0) {
      checks.add({"resources", "GPU"}, "is 0, but nproc_per_node is gpu: one rank per GPU");
    }
  }
  if (resources.memory && (*resources.memory == 0 || *resources.memory > limits::kMemory)) {
    checks.add({"resources", "memory"},
               "must be 1 byte to 1 EiB, not " + std::to_string(*resources.memory));
  }
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
  checks.range({"max_restarts"}, spec.max_restarts, 0, limits::kRestarts);
  check_resources(spec, checks);
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
  checks.range({"priority"}, spec.priority, -limits::kPriority, limits::kPriority);
  if (spec.after.size() > limits::kDependencies) {
    checks.add({"after"}, "has more than " + std::to_string(limits::kDependencies) + " jobs");
  } else {
    for (std::size_t i = 0; i < spec.after.size(); ++i) {
      if (!valid_name(spec.after[i])) {
        checks.add(index("after", i), shown(spec.after[i]) + " is no job id");
      }
    }
  }
  return checks.take();
}

}  // namespace spec

std::vector<Error> validate(const JobSpec& spec) {
  return spec::to_errors(spec::problems_of(spec));
}

json to_json(const JobSpec& spec) {
  json out{{"name", spec.name},
           {"workdir", spec.workdir},
           {"env", spec.env},
           {"setup", spec.setup},
           {"max_restarts", spec.max_restarts},
           {"resources_given", spec.resources_given},
           {"storage_path", spec.storage_path},
           {"bundle", to_string(spec.bundle)},
           {"on_head_lost", to_string(spec.on_head_lost)},
           {"stop_grace_s", spec.stop_grace.count()},
           {"priority", spec.priority},
           {"after", spec.after}};
  if (spec.shell && spec.command.size() == 1) {
    out["command"] = spec.command.front();
  } else {
    out["command"] = spec.command;
  }
  json secrets = json::array();
  for (const SecretSpec& secret : spec.secrets) {
    if (secret.file) {
      secrets.push_back({{secret.name, {{"file", *secret.file}}}});
    } else {
      secrets.push_back(secret.name);
    }
  }
  out["secrets"] = std::move(secrets);
  if (spec.nnodes.min == spec.nnodes.max) {
    out["nnodes"] = spec.nnodes.min;
  } else {
    out["nnodes"] = to_string(spec.nnodes);
  }
  if (spec.nproc_per_node.kind == ProcsKind::number) {
    out["nproc_per_node"] = spec.nproc_per_node.number;
  } else {
    out["nproc_per_node"] = to_string(spec.nproc_per_node);
  }
  json resources = json::object();
  if (spec.resources.cpu) resources["CPU"] = *spec.resources.cpu;
  if (spec.resources.gpu) resources["GPU"] = *spec.resources.gpu;
  if (spec.resources.memory) resources["memory"] = *spec.resources.memory;
  out["resources"] = std::move(resources);
  json checkpoint{{"score_order", to_string(spec.checkpoint.score_order)}};
  if (spec.checkpoint.num_to_keep) checkpoint["num_to_keep"] = *spec.checkpoint.num_to_keep;
  if (spec.checkpoint.score_attribute) {
    checkpoint["score_attribute"] = *spec.checkpoint.score_attribute;
  }
  out["checkpoint"] = std::move(checkpoint);
  if (spec.timeout) out["timeout_s"] = spec.timeout->count();
  if (spec.queue_timeout) out["queue_timeout_s"] = spec.queue_timeout->count();
  return out;
}

namespace {

// One object of the wire, key by key: an absent key leaves the default.
class Fields {
 public:
  Fields(const json& object, std::string name) : object_(object), name_(std::move(name)) {
    if (!object.is_object()) {
      throw Error(ErrorCode::invalid,
                  (name_.empty() ? "a job specification" : name_) + ": must be an object");
    }
  }

  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  Error wrong(const char* key, const std::string& expected) const {
    return Error(ErrorCode::invalid,
                 (name_.empty() ? "" : name_ + ".") + key + ": must be " + expected);
  }

  void text(const char* key, std::string& out) const {
    if (const json* value = find(key)) {
      if (!value->is_string()) throw wrong(key, "text");
      out = value->get<std::string>();
    }
  }

  void boolean(const char* key, bool& out) const {
    if (const json* value = find(key)) {
      if (!value->is_boolean()) throw wrong(key, "true or false");
      out = value->get<bool>();
    }
  }

  std::optional<std::int64_t> whole(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    const bool fits = value->is_number_integer() &&
                      (!value->is_number_unsigned() ||
                       value->get<std::uint64_t>() <=
                           static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
    if (!fits) throw wrong(key, "a whole number");
    return value->get<std::int64_t>();
  }

  std::optional<int> small(const char* key) const {
    const auto value = whole(key);
    if (!value) return std::nullopt;
    if (*value < std::numeric_limits<int>::min() || *value > std::numeric_limits<int>::max()) {
      throw wrong(key, "a whole number of 32 bits");
    }
    return static_cast<int>(*value);
  }

  std::optional<std::chrono::seconds> seconds(const char* key) const {
    const auto value = whole(key);
    if (!value) return std::nullopt;
    return std::chrono::seconds(*value);
  }

  void texts(const char* key, std::vector<std::string>& out) const {
    const json* value = find(key);
    if (value == nullptr) return;
    if (!value->is_array()) throw wrong(key, "a list of texts");
    out.clear();
    for (const json& item : *value) {
      if (!item.is_string()) throw wrong(key, "a list of texts");
      out.push_back(item.get<std::string>());
    }
  }

  // Gives the text to `parse`, and names the key in what it throws.
  template <typename Value, typename Parse>
  void parsed(const char* key, Value& out, Parse parse) const {
    std::string text;
    if (find(key) == nullptr) return;
    this->text(key, text);
    try {
      out = parse(text);
    } catch (const Error& error) {
      throw Error(ErrorCode::invalid,
                  (name_.empty() ? "" : name_ + ".") + key + ": " + error.message())
          .with_hint(error.hint());
    }
  }

 private:
  const json& object_;
  std::string name_;
};

void read_secrets(const Fields& fields, JobSpec& spec) {
  const json* secrets = fields.find("secrets");
  if (secrets == nullptr) return;
  const Error wrong = fields.wrong("secrets", "a list of NAME or {NAME: {file: PATH}}");
  if (!secrets->is_array()) throw wrong;
  for (const json& item : *secrets) {
    SecretSpec secret;
    if (item.is_string()) {
      secret.name = item.get<std::string>();
    } else {
      if (!item.is_object() || item.size() != 1) throw wrong;
      secret.name = item.begin().key();
      const json& source = item.begin().value();
      if (!source.is_object() || !source.contains("file") || !source["file"].is_string()) {
        throw wrong;
      }
      secret.file = source["file"].get<std::string>();
    }
    spec.secrets.push_back(std::move(secret));
  }
}

void read_resources(const Fields& fields, JobSpec& spec) {
  const json* object = fields.find("resources");
  if (object == nullptr) return;
  const Fields resources(*object, "resources");
  if (const json* cpu = resources.find("CPU")) {
    if (!cpu->is_number()) throw resources.wrong("CPU", "a number");
    spec.resources.cpu = cpu->get<double>();
  }
  spec.resources.gpu = resources.small("GPU");
  if (const auto memory = resources.whole("memory")) {
    if (*memory < 0) throw resources.wrong("memory", "a number of bytes");
    spec.resources.memory = static_cast<std::uint64_t>(*memory);
  }
}

}  // namespace

JobSpec job_spec_from_json(const json& object) {
  const Fields fields(object, "");
  JobSpec spec;
  fields.text("name", spec.name);
  if (const json* command = fields.find("command"); command != nullptr && command->is_string()) {
    spec.shell = true;
    spec.command = {command->get<std::string>()};
  } else {
    fields.texts("command", spec.command);
  }
  fields.text("workdir", spec.workdir);
  if (const json* env = fields.find("env")) {
    if (!env->is_object()) throw fields.wrong("env", "an object of texts");
    for (const auto& [name, value] : env->items()) {
      if (!value.is_string()) throw fields.wrong("env", "an object of texts");
      spec.env[name] = value.get<std::string>();
    }
  }
  read_secrets(fields, spec);
  fields.text("setup", spec.setup);
  if (const json* nnodes = fields.find("nnodes"); nnodes != nullptr && nnodes->is_string()) {
    fields.parsed("nnodes", spec.nnodes, parse_node_count);
  } else if (const auto number = fields.small("nnodes")) {
    spec.nnodes = {*number, *number};
  }
  if (const json* procs = fields.find("nproc_per_node"); procs != nullptr && procs->is_string()) {
    fields.parsed("nproc_per_node", spec.nproc_per_node, parse_procs_per_node);
  } else if (const auto number = fields.small("nproc_per_node")) {
    spec.nproc_per_node = {ProcsKind::number, *number};
  }
  spec.max_restarts = fields.small("max_restarts").value_or(spec.max_restarts);
  read_resources(fields, spec);
  fields.boolean("resources_given", spec.resources_given);
  fields.text("storage_path", spec.storage_path);
  if (const json* object_checkpoint = fields.find("checkpoint")) {
    const Fields checkpoint(*object_checkpoint, "checkpoint");
    spec.checkpoint.num_to_keep = checkpoint.small("num_to_keep");
    if (checkpoint.find("score_attribute") != nullptr) {
      checkpoint.text("score_attribute", spec.checkpoint.score_attribute.emplace());
    }
    checkpoint.parsed("score_order", spec.checkpoint.score_order, parse_score_order);
  }
  fields.parsed("bundle", spec.bundle, parse_bundle_mode);
  fields.parsed("on_head_lost", spec.on_head_lost, parse_on_head_lost);
  spec.stop_grace = fields.seconds("stop_grace_s").value_or(spec.stop_grace);
  spec.timeout = fields.seconds("timeout_s");
  spec.queue_timeout = fields.seconds("queue_timeout_s");
  spec.priority = fields.small("priority").value_or(spec.priority);
  fields.texts("after", spec.after);
  return spec;
}

}  // namespace dtrain
