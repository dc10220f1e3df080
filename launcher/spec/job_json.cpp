#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/spec/job_fields.hpp"

// A JobSpec as JSON, and back: an absent key is the default.
namespace dtrain {

using nlohmann::json;
using wire::if_set;
using wire::or_default;

namespace {

SecretSpec secret_from_json(const json& item) {
  if (item.is_string()) return {item.get<std::string>(), std::nullopt};
  const bool is_file = item.is_object() && item.size() == 1 && item.begin()->is_object() &&
                       item.begin()->contains("file") && item.begin()->at("file").is_string();
  if (!is_file) {
    throw Error(ErrorCode::invalid, "\"secrets\" must be a list of NAME or {NAME: {file: PATH}}");
  }
  return {item.begin().key(), item.begin()->at("file").get<std::string>()};
}

json to_json(const std::vector<SecretSpec>& secrets) {
  json list = json::array();
  for (const SecretSpec& secret : secrets) {
    list.push_back(secret.file ? json{{secret.name, {{"file", *secret.file}}}} : json(secret.name));
  }
  return list;
}

// A number, or text for what is none.
template <typename Value, typename Parse>
void read_number_or_text(const json& object, const char* key, Value& into, Parse parse) {
  const auto found = object.find(key);
  if (found == object.end()) return;
  try {
    into = parse(found->is_string() ? found->get<std::string>()
                                    : std::to_string(wire::as_int(*found, key, INT_MIN, INT_MAX)));
  } catch (Error& error) {
    error.while_doing(std::string("reading \"") + key + "\"");
    throw;
  }
}

}  // namespace

template <>
inline constexpr auto wire::kReader<BundleMode> = parse_bundle_mode;
template <>
inline constexpr auto wire::kReader<CpuBind> = parse_cpu_bind;
template <>
inline constexpr auto wire::kReader<GpuAmount> = gpus_from;
template <>
inline constexpr auto wire::kReader<Launcher> = parse_launcher;
template <>
inline constexpr auto wire::kReader<SameFailure> = parse_same_failure;
template <>
inline constexpr auto wire::kReader<ScoreOrder> = parse_score_order;
template <>
inline constexpr auto wire::kReader<OnHang> = parse_on_hang;

void fields(wire::Is<Resources> auto& m, auto&& f) {
  f("CPU", if_set(m.cpu), "GPU", if_set(m.gpu), "memory", if_set(m.memory));
}

void fields(wire::Is<CheckpointSpec> auto& m, auto&& f) {
  f("num_to_keep", if_set(m.num_to_keep, wire::kAnyInt), "score_attribute",
    if_set(m.score_attribute), "score_order", or_default(m.score_order));
}

void fields(wire::Is<RestartSpec> auto& m, auto&& f) {
  f("on", if_set(m.on), "count", if_set(m.count), "window_s", if_set(m.window, wire::kAnyInt),
    "backoff_s", if_set(m.backoff, wire::kAnyInt), "same_failure", if_set(m.same_failure));
}

void fields(wire::Is<StartCheckpoint> auto& m, auto&& f) {
  f("job", if_set(m.job), "number", if_set(m.number, wire::kAnyInt), "path", if_set(m.path), "tree",
    if_set(m.tree));
}

void fields(wire::Is<TrialOfSearch> auto& m, auto&& f) {
  f("search", m.search, "number", m.number, "leg", m.leg, "params", m.params);
}

// All but what is a number, a list or an object, or else text.
void fields(wire::Is<JobSpec> auto& m, auto&& f) {
  f("name", or_default(m.name), "workdir", or_default(m.workdir), "env", or_default(m.env), "setup",
    or_default(m.setup), "max_restarts", or_default(m.max_restarts, wire::kAnyInt), "restart",
    if_set(m.restart), "spares", if_set(m.spares, wire::kAnyInt), "resources",
    or_default(m.resources), "resources_given", or_default(m.resources_given), "custom_resources",
    if_set(m.custom_resources), "label_selector", if_set(m.label_selector), "storage_path",
    or_default(m.storage_path), "checkpoint", or_default(m.checkpoint), "bundle",
    or_default(m.bundle), "on_head_lost", or_default(m.on_head_lost), "launcher",
    if_set(m.launcher), "cpu_bind", if_set(m.cpu_bind), "stop_grace_s",
    or_default(m.stop_grace, wire::kAnyInt));
  f("timeout_s", if_set(m.timeout, wire::kAnyInt), "queue_timeout_s",
    if_set(m.queue_timeout, wire::kAnyInt), "hang_timeout_s", if_set(m.hang_timeout, wire::kAnyInt),
    "on_hang", if_set(m.on_hang), "log_limit", if_set(m.log_limit), "priority",
    or_default(m.priority, wire::kAnyInt), "after", or_default(m.after), "resumes",
    if_set(m.resumes), "start", if_set(m.start), "content", if_set(m.content), "trial",
    if_set(m.trial));
}

namespace {

struct KeyLister {
  std::set<std::string>& keys;

  template <typename T, typename... Rest>
  void operator()(const char* key, const T&, const Rest&... rest) const {
    keys.insert(key);
    if constexpr (sizeof...(Rest) > 0) (*this)(rest...);
  }
};

void refuse_unknown(const json& object, const JobSpec& spec) {
  std::set<std::string> known{"command", "secrets", "nnodes", "nproc_per_node"};
  fields(spec, KeyLister{known});
  for (const auto& [key, value] : object.items()) {
    if (known.contains(key)) continue;
    throw Error(ErrorCode::invalid,
                printable(key, false) + ": is no key of a job that is known here");
  }
}

}  // namespace

json to_json(const JobSpec& spec) {
  json out = wire::written(spec);
  out["command"] =
      spec.shell && spec.command.size() == 1 ? json(spec.command.front()) : json(spec.command);
  out["secrets"] = to_json(spec.secrets);
  out["nnodes"] =
      spec.nnodes.min == spec.nnodes.max ? json(spec.nnodes.min) : json(to_string(spec.nnodes));
  out["nproc_per_node"] = spec.nproc_per_node.kind == ProcsKind::number
                              ? json(spec.nproc_per_node.number)
                              : json(to_string(spec.nproc_per_node));
  return out;
}

JobSpec job_spec_from_json(const json& object, UnknownKeys unknown) {
  if (!object.is_object()) {
    throw Error(ErrorCode::invalid, "a job specification must be an object");
  }
  JobSpec spec;
  if (unknown == UnknownKeys::refuse) refuse_unknown(object, spec);
  wire::read(object, spec);
  if (const auto command = object.find("command"); command != object.end()) {
    spec.shell = command->is_string();
    if (spec.shell) {
      spec.command = {command->get<std::string>()};
    } else {
      spec.command = wire::from_value<std::vector<std::string>>(*command, "command");
    }
  }
  if (const auto secrets = object.find("secrets"); secrets != object.end()) {
    if (!secrets->is_array()) wire::wrong_type("secrets", "a list", *secrets);
    for (const json& item : *secrets) spec.secrets.push_back(secret_from_json(item));
  }
  read_number_or_text(object, "nnodes", spec.nnodes, parse_node_count);
  read_number_or_text(object, "nproc_per_node", spec.nproc_per_node, parse_procs_per_node);
  return spec;
}

}  // namespace dtrain
