#include "launcher/provider/wanted_types.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "launcher/spec/limits.hpp"

namespace dtrain {
namespace {

constexpr double kLongIdle = 24 * 86400;  // seconds; what is more is this

}  // namespace

wire::WantedMachines::Type wanted_type(const ClusterSpec& spec,
                                       const ClusterSpec::Workers& workers) {
  const auto said = std::find_if(spec.node_types.begin(), spec.node_types.end(),
                                 [&](const NodeType& each) { return each.name == workers.type; });
  wire::WantedMachines::Type type;
  type.name = workers.type;
  type.count = workers.count;
  type.max_workers = std::min(workers.most, wire::WantedMachines::kMost);
  const double idle_s = said->idle_timeout_s.value_or(60 * spec.idle_timeout_minutes);
  type.idle_timeout = std::chrono::milliseconds(std::llround(1000 * std::min(idle_s, kLongIdle)));
  type.priority = said->priority;
  return type;
}

int most_workers(const ClusterSpec& spec) {
  return std::clamp(spec.max_workers, 0, wire::WantedMachines::kMost);
}

wire::NodeTypes node_types(const ClusterSpec& spec, bool with_sizes) {
  wire::NodeTypes types;
  for (const NodeType& said : spec.node_types) {
    wire::NodeTypes::Type& type = types.types.emplace_back();
    type.name = said.name;
    type.labels = said.labels;
    type.resources = said.resources;
    const auto take = [&](const char* name) -> std::optional<double> {
      const auto found = type.resources.extract(name);
      return found && with_sizes ? std::optional(found.mapped()) : std::nullopt;
    };
    type.cpus = take("CPU");
    type.memory = take("memory");
    if (const auto gpus = take("GPU")) {
      type.gpus = static_cast<int>(std::min<double>(*gpus, limits::kGpus));
    }
  }
  return types;
}

}  // namespace dtrain
