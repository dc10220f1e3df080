#include "trainer/launch/fit.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>

#include "trainer/launch/cluster.hpp"

namespace dtrain::train {
namespace {

// A number as the command reads it: 2, 0.5.
std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.15g", value);
  return text;
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
  check(run);
  const CheckpointConfig& kept = run.checkpoint_config;
  std::vector<std::string> words{"submit",
                                 "-d",
                                 "--json",
                                 "--nnodes",
                                 std::to_string(shape.nodes),
                                 "--nproc-per-node",
                                 std::to_string(shape.per_node),
                                 "--max-restarts",
                                 std::to_string(max_restarts(run)),
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
  const auto numbers = [](const nlohmann::json& of) {
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
  result.exit_code = exit_code_of(state);
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
  const Cluster cluster(command);
  const nlohmann::json submitted = cluster.ask(
      submit_words(scaling, run, place_workers(scaling, cluster.status()), this_command()));
  const std::string job = submitted.at("job").get<std::string>();
  cluster.follow({"logs", "-f", job}, job);
  const nlohmann::json document = cluster.ask({"result", "--json", job});
  const std::string state = document.value("state", "");
  if (state != "succeeded" && state != "failed" && state != "stopped") {
    throw Error("following " + job + " broke off, it is " + state + ": dtrain logs -f " + job);
  }
  return result_of(document, run.checkpoint_config);
}

}  // namespace dtrain::train
