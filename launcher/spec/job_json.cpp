#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/spec/job_spec.hpp"
#include "launcher/spec/values.hpp"

namespace dtrain {

using nlohmann::json;

namespace {

json start_to_json(const StartCheckpoint& start) {
  if (!start.job.empty()) return {{"job", start.job}, {"number", start.number}};
  json out{{"path", start.path}};
  if (!start.tree.empty()) out["tree"] = start.tree;
  return out;
}

}  // namespace

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
           {"launcher", to_string(spec.launcher)},
           {"stop_grace_s", spec.stop_grace.count()},
           {"priority", spec.priority},
           {"after", spec.after}};
  if (spec.shell && spec.command.size() == 1) {
    out["command"] = spec.command.front();
  } else {
    out["command"] = spec.command;
  }
  if (!spec.resumes.empty()) out["resumes"] = spec.resumes;
  if (spec.start) out["start"] = start_to_json(*spec.start);
  if (spec.content) out["content"] = to_json(*spec.content);
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

void resources_from_json(const Fields& fields, JobSpec& spec) {
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

void read_start(const Fields& fields, JobSpec& spec) {
  const json* object = fields.find("start");
  if (object == nullptr) return;
  const Fields start(*object, "start");
  StartCheckpoint& checkpoint = spec.start.emplace();
  start.text("job", checkpoint.job);
  checkpoint.number = start.small("number").value_or(0);
  start.text("path", checkpoint.path);
  start.text("tree", checkpoint.tree);
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
  resources_from_json(fields, spec);
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
  fields.parsed("launcher", spec.launcher, parse_launcher);
  spec.stop_grace = fields.seconds("stop_grace_s").value_or(spec.stop_grace);
  spec.timeout = fields.seconds("timeout_s");
  spec.queue_timeout = fields.seconds("queue_timeout_s");
  spec.priority = fields.small("priority").value_or(spec.priority);
  fields.texts("after", spec.after);
  fields.text("resumes", spec.resumes);
  read_start(fields, spec);
  if (const json* content = fields.find("content")) spec.content = job_content_from_json(*content);
  return spec;
}

json to_json(const JobContent& content) {
  return {{"workdir_tree", content.workdir_tree}, {"bundle_tree", content.bundle_tree},
          {"program", content.program},           {"glibc", content.glibc},
          {"glibc_of", content.glibc_of},         {"size", content.size}};
}

JobContent job_content_from_json(const json& object) {
  const Fields fields(object, "content");
  JobContent content;
  fields.text("workdir_tree", content.workdir_tree);
  fields.text("bundle_tree", content.bundle_tree);
  fields.text("program", content.program);
  fields.text("glibc", content.glibc);
  fields.text("glibc_of", content.glibc_of);
  if (const json* size = fields.find("size"); size != nullptr && size->is_number_unsigned()) {
    content.size = size->get<std::uint64_t>();
  }
  return content;
}

}  // namespace dtrain
