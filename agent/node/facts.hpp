#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/wire/node.hpp"

// What a node says of its machine.
namespace dtrain::node {

struct Facts {
  // In a step of Slurm at most what that has.
  int cpus = 1;              // that this process may use: affinity and cgroup quota
  int gpus = 0;              // NVIDIA's driver's /proc entries
  std::uint64_t memory = 0;  // bytes: the machine's, or the cgroup's limit if that is less
  std::string boot_id;
  // Equal for agents that share kernel, network and file system, so that one can read the other's
  // files and reach its loopback.
  std::string machine;
  std::string glibc;                      // of the machine, "2.36"; empty: none
  std::optional<wire::SlurmPlace> slurm;  // absent: this process is in no step of Slurm's
};

Facts gather_facts();

// The addresses of the interfaces that are up, as they are now; IPv4 before IPv6, without loopback
// and link-local ones.
std::vector<wire::Interface> gather_interfaces();
// The interface that has this address, loopback too; empty: none has.
std::string interface_with(const std::string& address);

}  // namespace dtrain::node
