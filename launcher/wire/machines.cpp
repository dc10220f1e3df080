#include "launcher/wire/machines.hpp"

#include <cstdint>
#include <set>

#include "launcher/core/files.hpp"
#include "launcher/wire/fields.hpp"

namespace dtrain::wire {

void fields(Is<WantedMachines::Type> auto& m, auto&& f) {
  f("type", m.name, "count", within(m.count, 0, WantedMachines::kMost), "launch", m.launch,
    "options", if_set(m.options), "config", if_set(m.config), "max_workers",
    if_set(m.max_workers, {0, WantedMachines::kMost}), "idle_timeout_ms", if_set(m.idle_timeout),
    "priority", if_set(m.priority, {INT_MIN, INT_MAX}), "cpus", if_set(m.cpus), "gpus",
    if_set(m.gpus, {0, WantedMachines::kMostGpus}), "memory", if_set(m.memory));
}
void fields(Is<WantedMachines::Head> auto& m, auto&& f) {
  f("options", m.options, "script", m.script);
}
void fields(Is<WantedMachines::DownWhenIdle> auto& m, auto&& f) {
  f("after_ms", m.after, "terminate", if_set(m.terminate));
}
void fields(Is<WantedMachines> auto& m, auto&& f) {
  f("provider", m.provider, "boot", m.boot, "scaler", if_set(m.scaler), "config", if_set(m.config),
    "environment", if_set(m.environment), "addresses", if_set(m.addresses), "types", m.types,
    "max_workers", or_default(m.max_workers, {0, WantedMachines::kMost}), "upscaling_speed",
    if_set(m.upscaling_speed), "replace", if_set(m.replace), "cache_stopped_nodes",
    if_set(m.cache_stopped_nodes), "head", if_set(m.head), "down_when_idle",
    if_set(m.down_when_idle));
}

nlohmann::json to_json(const WantedMachines& wanted) {
  return written(wanted);
}

WantedMachines wanted_machines_from_json(const nlohmann::json& json) {
  WantedMachines wanted;
  read(json, wanted);
  const bool has_scaler = !wanted.scaler.empty();
  if (!wanted.provider.empty() &&
      !fs::path(has_scaler ? wanted.scaler : wanted.boot).is_absolute()) {
    throw Error(ErrorCode::invalid,
                std::string(has_scaler ? "\"scaler\"" : "\"boot\"") + " is no absolute path");
  }
  if (!(wanted.upscaling_speed.value_or(0) >= 0)) {
    throw Error(ErrorCode::invalid, "\"upscaling_speed\" is below 0");
  }
  std::set<std::string> names;
  std::int64_t count = 0;
  for (const WantedMachines::Type& type : wanted.types) {
    count += type.count;
    if (type.cpus && !(*type.cpus > 0 && *type.cpus <= WantedMachines::kMostCpus)) {
      throw Error(ErrorCode::invalid, "\"cpus\" is no number of CPUs");
    }
    const bool is_fine = valid_name(type.name) && names.insert(type.name).second;
    if (!is_fine) throw Error(ErrorCode::invalid, "\"type\" is no name, or there twice");
  }
  if (count > WantedMachines::kMost) {
    throw Error(ErrorCode::invalid, "the head keeps " + std::to_string(WantedMachines::kMost) +
                                        " machines at most, and " + std::to_string(count) +
                                        " are wanted");
  }
  return wanted;
}

}  // namespace dtrain::wire
