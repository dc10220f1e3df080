#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtrain::train {

// The hosts of a Slurm list: "node[08-10,12],gpu1" is node08, node09, node10, node12, gpu1. Throws
// Error that quotes the list when it is not one, or has more than 65,536 hosts.
std::vector<std::string> slurm_hosts(const std::string& list);

// "2(x3),1" is 2, 2, 2, 1: tasks by node. Throws Error as above.
std::vector<int> slurm_tasks_by_node(const std::string& list);

// A port that every rank of a job step computes alike, and two jobs of one host rarely.
std::uint16_t slurm_port(const std::string& job, const std::string& step);

}  // namespace dtrain::train
