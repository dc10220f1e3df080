#include "trainer/launch/fit.hpp"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>

namespace dtrain::train {
namespace {

constexpr int kWithoutEnd = 1'000'000;  // the largest max_restarts
constexpr int kStopped = 3;             // exit codes of `dtrain logs -f`
constexpr int kDetached = 130;

double resource(const ScalingConfig& scaling, const std::string& name) {
  const auto found = scaling.resources_per_worker.find(name);
  return found == scaling.resources_per_worker.end() ? 0 : found->second;
}

double gpus_each(const ScalingConfig& scaling) {
  return std::max(resource(scaling, "GPU"), scaling.use_gpu ? 1.0 : 0.0);
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

// A number as the command reads it: 2, 0.5.
std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.15g", value);
  return text;
}

// This program as it was started. The file itself, not the name that it was found by.
std::vector<std::string> this_command() {
  std::vector<std::string> words;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (words.empty()) throw Error("cannot read /proc/self/cmdline");
  words.front() = std::filesystem::read_symlink("/proc/self/exe").string();
  return words;
}

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

JobShape place_workers(const ScalingConfig& scaling, const nlohmann::json& status) {
  check(scaling);
  const int workers = scaling.num_workers;
  if (scaling.nodes) return {*scaling.nodes, workers / *scaling.nodes};
  // Of parts each rank has one of another GPU.
  const double gpus = std::ceil(gpus_each(scaling));
  const double memory = resource(scaling, "memory");
  // As `dtrain submit` counts: who asks for GPUs and no CPU has none counted, else 1.
  const bool asks_cpu = scaling.resources_per_worker.contains("CPU");
  const double cpus = asks_cpu ? resource(scaling, "CPU") : gpus > 0 ? 0 : 1;
  // How many ranks fit on each node; first of those that take ranks now, then of all: others are
  // waited for.
  const nlohmann::json all = status.value("nodes", nlohmann::json::array());
  for (const bool only_ready : {true, false}) {
    std::vector<double> room;
    for (const nlohmann::json& node : all) {
      if (only_ready && node.value("state", "") != "ready") continue;
      const auto fits = [&](const char* key, double each) {
        return each > 0 ? std::floor(node.value(key, 0.0) / each + 1e-9)
                        : std::numeric_limits<double>::infinity();
      };
      room.push_back(std::min({fits("gpus", gpus), fits("cpus", cpus), fits("memory", memory)}));
    }
    std::sort(room.rbegin(), room.rend());
    for (int nodes = 1; nodes <= workers && nodes <= static_cast<int>(room.size()); ++nodes) {
      const int each = workers / nodes;
      if (workers % nodes == 0 && room[static_cast<std::size_t>(nodes - 1)] >= each) {
        return {nodes, each};
      }
    }
  }
  return {1, workers};
}

std::vector<std::string> submit_words(const ScalingConfig& scaling, const RunConfig& run,
                                      const JobShape& shape,
                                      const std::vector<std::string>& command) {
  check(scaling);
  const CheckpointConfig& kept = run.checkpoint_config;
  const int failures = run.failure_config.max_failures;
  if (failures < -1) throw Error("FailureConfig: max_failures is -1 (without end) or more");
  if (kept.score_order != "max" && kept.score_order != "min") {
    throw Error("CheckpointConfig: score_order is max or min, not '" + kept.score_order + "'");
  }
  std::vector<std::string> words{"submit",
                                 "-d",
                                 "--json",
                                 "--nnodes",
                                 std::to_string(shape.nodes),
                                 "--nproc-per-node",
                                 std::to_string(shape.per_node),
                                 "--max-restarts",
                                 std::to_string(failures == -1 ? kWithoutEnd : failures),
                                 "--env",
                                 std::string(kFitVariable) + "=1"};
  const auto add = [&](const char* flag, const std::string& value) {
    words.emplace_back(flag);
    words.push_back(value);
  };
  if (!run.name.empty()) add("--name", run.name);
  if (!run.storage_path.empty()) {
    add("--storage-path", std::filesystem::absolute(run.storage_path).string());
  }
  if (kept.num_to_keep) add("--num-to-keep", std::to_string(*kept.num_to_keep));
  if (!kept.score_attribute.empty()) {
    add("--score-attribute", kept.score_attribute);
    add("--score-order", kept.score_order);
  }
  if (const double gpus = gpus_each(scaling); gpus > 0) add("--gpus", number(gpus));
  if (scaling.resources_per_worker.contains("CPU")) add("--cpus", number(resource(scaling, "CPU")));
  if (const double memory = resource(scaling, "memory"); memory > 0) {
    add("--memory", number(memory));
  }
  words.emplace_back("--");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

Result result_of(const nlohmann::json& document, const CheckpointConfig& config) {
  Result result;
  const auto member = [](const nlohmann::json& of, const char* key) {
    return of.is_object() ? of.value(key, nlohmann::json()) : nlohmann::json();
  };
  const auto text = [&](const nlohmann::json& of, const char* key) {
    const nlohmann::json value = member(of, key);
    return value.is_string() ? value.get<std::string>() : std::string();
  };
  const auto numbers = [&](const nlohmann::json& of) {
    const nlohmann::json value = member(of, "metrics");
    return value.is_object() ? metrics_from_json(value) : Metrics{};
  };
  result.job = text(document, "job");
  result.metrics = numbers(document);
  for (const nlohmann::json& each : member(document, "checkpoints")) {
    result.checkpoint = text(each, "path");  // they come in the order of their numbers
    result.best_checkpoints.emplace_back(text(each, "path"), numbers(each));
  }
  std::reverse(result.best_checkpoints.begin(), result.best_checkpoints.end());
  if (!config.score_attribute.empty()) {
    const auto score = [&](const auto& checkpoint) {
      const auto found = checkpoint.second.find(config.score_attribute);
      const double worst = -std::numeric_limits<double>::infinity();
      if (found == checkpoint.second.end() || std::isnan(found->second)) return worst;
      return config.score_order == "min" ? -found->second : found->second;
    };
    std::stable_sort(result.best_checkpoints.begin(), result.best_checkpoints.end(),
                     [&](const auto& a, const auto& b) { return score(a) > score(b); });
  }
  const std::string state = text(document, "state");
  if (state == "succeeded") return result;
  result.exit_code = state == "stopped" ? kStopped : 1;
  const nlohmann::json error = member(document, "error");
  std::string message = text(error, "message");
  if (const std::string own = text(error, "error_message"); !own.empty()) message += "\n" + own;
  if (message.empty()) message = text(document, "reason");
  result.error = message.empty() ? "the job is " + state : message;
  return result;
}

Result fit_as_job(const DtrainCommand& command, const ScalingConfig& scaling,
                  const RunConfig& run) {
  static std::atomic<bool> called{false};
  if (called.exchange(true)) {
    throw Error("TorchTrainer: a program calls fit() once: its ranks run the same main()");
  }
  check(scaling);
  nlohmann::json status = nlohmann::json::object();
  std::vector<std::string> cluster;
  if (no_cluster(command, status)) {
    std::fprintf(stderr, "no cluster is up: the local one is brought up (dtrain down ends it)\n");
    command.ask({"up", "--json"});
    status = command.ask({"status", "--json"});
  }
  cluster = {"-c", status.at("cluster").at("name").get<std::string>()};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.begin() + 1, cluster.begin(), cluster.end());
    return words;
  };
  const nlohmann::json submitted =
      command.ask(with(submit_words(scaling, run, place_workers(scaling, status), this_command())));
  const std::string job = submitted.at("job").get<std::string>();
  const int code = command.show(with({"logs", "-f", job}));
  if (code == kDetached) {
    ::raise(SIGINT);
    throw Error("detached from " + job + ", which goes on: dtrain logs -f " + job);
  }
  const nlohmann::json document = command.ask(with({"result", "--json", job}));
  const std::string state = document.value("state", "");
  if (state != "succeeded" && state != "failed" && state != "stopped") {
    throw Error("following " + job + " broke off, it is " + state + ": dtrain logs -f " + job);
  }
  return result_of(document, run.checkpoint_config);
}

}  // namespace dtrain::train
