#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/metrics.hpp"
#include "trainer/launch/command.hpp"

// What TorchTrainer is told and what it returns, by Ray Train's names, and how a job is made of it.
namespace dtrain::train {

struct ScalingConfig {
  int num_workers = 1;   // ranks
  bool use_gpu = false;  // one GPU each
  // Of each rank: "CPU", "GPU", "memory" (bytes).
  std::map<std::string, double> resources_per_worker;
  // On how many nodes, as many ranks on each. Absent: see place_workers.
  std::optional<int> nodes;
};

struct CheckpointConfig {
  std::optional<int> num_to_keep;  // all if not set
  std::string score_attribute;     // a metric; the newest are kept if empty
  std::string score_order = "max";
};

struct FailureConfig {
  int max_failures = 0;  // restarts from the newest checkpoint; -1: without end
};

struct RunConfig {
  std::string name;          // the job's; the program's if empty
  std::string storage_path;  // that all nodes see; empty: on the head, without dtrain runs/NAME
  CheckpointConfig checkpoint_config;
  FailureConfig failure_config;
};

// How a training ended.
struct Result {
  Metrics metrics;                                  // the last value of each name
  std::optional<std::filesystem::path> checkpoint;  // the newest, a path on the machine that has it
  // With the metrics that they were reported with, the best first.
  std::vector<std::pair<std::filesystem::path, Metrics>> best_checkpoints;
  std::optional<std::string> error;  // why it failed or was stopped
  std::string job;                   // its id; empty where no job was made
  int exit_code = 0;                 // for main(): 0, 1 failed, 3 stopped
};

struct JobShape {
  int nodes = 1;
  int per_node = 1;
  bool operator==(const JobShape&) const = default;
};

// How many nodes, and ranks on each, by `status --json`: as few nodes as have room for them, the
// same number of ranks on each. Room is counted as submit counts it: GPUs; CPUs, 1 a rank where
// neither CPU nor GPU is asked for; memory. Nodes that are not ready count only where the ready
// ones have no such room: they are waited for. Where there is no such number of nodes it is one,
// and submit says what is short, or, where nothing was asked for, the ranks share its CPUs. Pure.
// Throws Error on what cannot be: no workers, nodes that do not divide them, resources of other
// names.
JobShape place_workers(const ScalingConfig& scaling, const nlohmann::json& status);

// `command` as a job: the words of `dtrain submit`. Pure. Throws Error as place_workers.
std::vector<std::string> submit_words(const ScalingConfig& scaling, const RunConfig& run,
                                      const JobShape& shape,
                                      const std::vector<std::string>& command);

// Of `dtrain result --json`.
Result result_of(const nlohmann::json& document, const CheckpointConfig& config);

// In ranks of a job that fit() made: what comes after fit() in the program is for the one that
// called it, and a rank ends there.
inline constexpr const char* kFitVariable = "DTRAIN_FIT";

// Runs this program, with its arguments, as a job of the current cluster, follows it on stdout and
// stderr, and returns how it ended. Without a cluster the local one is brought up, and said. Ctrl-C
// leaves the job running, says how to come back, and ends this process by SIGINT, unless it handles
// that: then Error. Throws Error also on a second call: the ranks could not tell which they are.
Result fit_as_job(const DtrainCommand& command, const ScalingConfig& scaling, const RunConfig& run);

}  // namespace dtrain::train
