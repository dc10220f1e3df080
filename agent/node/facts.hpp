#pragma once

#include <cstdint>
#include <string>

// What a node says of its machine.
namespace dtrain::node {

struct Facts {
  int cpus = 1;              // that this process may use: affinity and cgroup quota
  int gpus = 0;              // NVIDIA's driver's /proc entries
  std::uint64_t memory = 0;  // bytes: the machine's, or the cgroup's limit if that is less
  std::string boot_id;
  // Equal for agents that share kernel, network and file system, so that one can read the other's
  // files and reach its loopback.
  std::string machine;
  std::string glibc;  // of the machine, "2.36"; empty: none
};

Facts gather_facts();

}  // namespace dtrain::node
