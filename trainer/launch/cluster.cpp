#include "trainer/launch/cluster.hpp"

#include <signal.h>

#include <cmath>
#include <cstdio>
#include <fstream>

namespace dtrain::train {
namespace {

constexpr int kWithoutEnd = 1'000'000;  // the largest max_restarts
constexpr int kDetached = 130;          // exit codes of what follows
constexpr int kStopped = 3;

bool no_cluster(const DtrainCommand& command, nlohmann::json& status) {
  // That there is none is known without asking anyone; a cluster that was named, or that does not
  // answer, is an error.
  try {
    status = command.ask({"status", "--json"});
    return false;
  } catch (const CommandError& error) {
    if (error.code() != "unreachable" || process_variable("DTRAIN_CLUSTER") ||
        std::string(error.what()).rfind("no cluster", 0) != 0) {
      throw;
    }
    return true;
  }
}

}  // namespace

double resource(const ScalingConfig& scaling, const std::string& name) {
  const auto found = scaling.resources_per_worker.find(name);
  return found == scaling.resources_per_worker.end() ? 0 : found->second;
}

double gpus_each(const ScalingConfig& scaling) {
  const double said = resource(scaling, "GPU");
  return said > 0 || !scaling.use_gpu ? said : 1;
}

void check(const ScalingConfig& scaling) {
  if (scaling.num_workers < 1) {
    throw Error("ScalingConfig: num_workers is " + std::to_string(scaling.num_workers) +
                ", at least 1 is needed");
  }
  for (const auto& [name, amount] : scaling.resources_per_worker) {
    if (name != "CPU" && name != "GPU" && name != "memory") {
      throw Error("ScalingConfig: resources_per_worker knows CPU, GPU and memory, not '" + name +
                  "'");
    }
    if (!(amount >= 0) || !std::isfinite(amount)) {
      throw Error("ScalingConfig: resources_per_worker: " + name + " is negative or no number");
    }
    const bool may_be_part = name == "CPU" || (name == "GPU" && amount < 1);
    if (!may_be_part && amount != std::floor(amount)) {
      throw Error("ScalingConfig: resources_per_worker: " + name + " is a whole number");
    }
  }
  if (scaling.nodes && (*scaling.nodes < 1 || scaling.num_workers % *scaling.nodes != 0)) {
    throw Error("ScalingConfig: " + std::to_string(scaling.num_workers) + " workers on " +
                std::to_string(*scaling.nodes) + " nodes: each node has the same number");
  }
}

void check(const RunConfig& run) {
  if (run.failure_config.max_failures < -1) {
    throw Error("FailureConfig: max_failures is -1 (without end) or more");
  }
  if (run.checkpoint_config.num_to_keep.value_or(1) < 1) {
    throw Error("CheckpointConfig: num_to_keep must be at least 1");
  }
  const std::string& order = run.checkpoint_config.score_order;
  if (order != "max" && order != "min") {
    throw Error("CheckpointConfig: score_order is max or min, not '" + order + "'");
  }
}

int max_restarts(const RunConfig& run) {
  const int failures = run.failure_config.max_failures;
  return failures == -1 ? kWithoutEnd : failures;
}

int exit_code_of(const std::string& state) {
  return state == "succeeded" ? 0 : state == "stopped" ? kStopped : 1;
}

std::vector<std::string> this_command() {
  std::vector<std::string> words;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (words.empty()) throw Error("cannot read /proc/self/cmdline");
  words.front() = std::filesystem::read_symlink("/proc/self/exe").string();
  return words;
}

Cluster::Cluster(const DtrainCommand& command) : command_(command) {
  if (!no_cluster(command, status_)) return;
  std::fprintf(stderr, "no cluster is up: the local one is brought up (dtrain down ends it)\n");
  command.ask({"up", "--json"});
  status_ = command.ask({"status", "--json"});
}

std::vector<std::string> Cluster::of_it(std::vector<std::string> words, std::size_t verbs) const {
  const std::vector<std::string> named = {"-c",
                                          status_.at("cluster").at("name").get<std::string>()};
  words.insert(words.begin() + static_cast<std::ptrdiff_t>(verbs), named.begin(), named.end());
  return words;
}

nlohmann::json Cluster::ask(std::vector<std::string> words, std::size_t verbs) const {
  return command_.ask(of_it(std::move(words), verbs));
}

void Cluster::follow(std::vector<std::string> words, const std::string& what,
                     std::size_t verbs) const {
  std::string again = "dtrain";
  for (const std::string& word : words) again += " " + word;
  if (command_.show(of_it(std::move(words), verbs)) != kDetached) return;
  ::raise(SIGINT);
  throw Error("detached from " + what + ", which goes on: " + again);
}

}  // namespace dtrain::train
