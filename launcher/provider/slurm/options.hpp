#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/spec/cluster_spec.hpp"

namespace dtrain::slurm {

// What sbatch is to give for nodes of this type, beside how many: `node_config` is its long options
// as they are ("gpus-per-node: 4", true for one without a value), before them the provider's
// partition, account and qos. Where they say nothing of CPUs, memory or GPUs, `resources` does, and
// where that says nothing of CPUs either, a node is had whole. Two minutes before its time is over
// its batch script hears it (SIGUSR1), where `time` is not shorter than four. Throws Error(invalid)
// that names the type and the option.
std::vector<std::string> batch_options(const ClusterSpec& spec, const std::string& type);

// What a node of the type has, as far as that says it; nothing of one that is had whole.
struct Known {
  std::optional<double> cpus;
  std::optional<int> gpus;
  std::optional<std::uint64_t> memory;  // bytes
};
Known known_of(const ClusterSpec& spec, const std::string& type);

}  // namespace dtrain::slurm
