#include "trainer/launch/tune.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "trainer/core/files.hpp"
#include "trainer/launch/cluster.hpp"

namespace dtrain::train {
namespace {

using nlohmann::json;

json domain(const char* kind, json arguments) {
  json made = json::object();
  made[kind] = std::move(arguments);
  return made;
}

// A whole number is written as one.
json amount(double value) {
  return value == std::floor(value) && value < 1e15 ? json(static_cast<std::int64_t>(value))
                                                    : json(value);
}

// Texts are themselves: a YAML's "1.0" is a number, and its "choice:a:b" a choice.
json without_words(const json& space) {
  json plain = space;
  for (const auto& [name, value] : plain.items()) {
    if (name == "when" || name == "sample_from" || name == "constant") continue;
    if (value.is_string()) {
      value = domain("constant", value);
    } else if (value.is_object()) {
      value = without_words(value);
    }
  }
  return plain;
}

// A file in memory, so that it is gone with this process, whatever ends it.
class OwnFile {
 public:
  explicit OwnFile(const std::string& text) : file_(::memfd_create("search.yaml", MFD_CLOEXEC)) {
    // Nor is it a program.
    if (!file_.valid() || ::fchmod(file_.get(), 0600) != 0) fail();
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t wrote = ::write(file_.get(), text.data() + done, text.size() - done);
      if (wrote < 0) fail();
      done += static_cast<std::size_t>(wrote);
    }
  }

  std::string path() const {
    return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file_.get());
  }

 private:
  [[noreturn]] static void fail() {
    throw Error(std::string("cannot write a search down: ") + std::strerror(errno));
  }

  FileDescriptor file_;
};

// As metrics are written: a number, or a text for what is not finite.
std::optional<double> measured(const json& value) {
  if (value.is_null()) return std::nullopt;
  return metrics_from_json({{"value", value}}).at("value");
}

TrialResult trial_of(const json& trial) {
  TrialResult result;
  result.trial = trial.value("trial", std::uint64_t{0});
  result.state = text(trial, "state");
  result.reason = text(trial, "reason");
  result.params = member(trial, "params");
  if (const json metrics = member(trial, "metrics"); metrics.is_object()) {
    result.metrics = metrics_from_json(metrics);
  }
  result.iterations = trial.value("iteration", std::int64_t{0});
  result.job = text(trial, "job");
  result.value = measured(member(trial, "value"));
  return result;
}

}  // namespace

namespace tune {

json choice(std::vector<json> values) {
  return domain("choice", std::move(values));
}
json grid_search(std::vector<json> values) {
  return domain("grid_search", std::move(values));
}
json uniform(double low, double high) {
  return domain("uniform", {low, high});
}
json quniform(double low, double high, double q) {
  return domain("quniform", {low, high, q});
}
json loguniform(double low, double high) {
  return domain("loguniform", {low, high});
}
json qloguniform(double low, double high, double q) {
  return domain("qloguniform", {low, high, q});
}
json randn(double mean, double deviation) {
  return domain("randn", {mean, deviation});
}
json randint(std::int64_t low, std::int64_t high) {
  return domain("randint", {low, high});
}
json lograndint(std::int64_t low, std::int64_t high) {
  return domain("lograndint", {low, high});
}
json sample_from(const std::string& expression) {
  return domain("sample_from", expression);
}

}  // namespace tune

std::size_t ResultGrid::num_errors() const {
  return static_cast<std::size_t>(
      std::count_if(trials_.begin(), trials_.end(),
                    [](const TrialResult& each) { return each.state == "failed"; }));
}

const TrialResult& ResultGrid::get_best_result() const {
  const auto best = std::find_if(trials_.begin(), trials_.end(),
                                 [&](const TrialResult& each) { return each.trial == best_; });
  if (best == trials_.end()) throw Error("ResultGrid: no trial has reported the metric");
  return *best;
}

json search_document(const json& space, const TuneConfig& tune, const ScalingConfig& scaling,
                     const RunConfig& run, const JobShape& shape,
                     const std::vector<std::string>& program) {
  check(scaling);
  check(run);
  if (tune.metric.empty()) throw Error("TuneConfig: metric is missing");
  if (tune.mode != "max" && tune.mode != "min") {
    throw Error("TuneConfig: mode is max or min, not '" + tune.mode + "'");
  }
  if (!space.is_object() || space.empty())
    throw Error("Tuner: param_space is no object with parameters");
  json search = {{"command", program.empty() ? this_command() : program},
                 {"workdir", std::filesystem::current_path().string()},
                 {"nnodes", shape.nodes},
                 {"nproc_per_node", shape.per_node},
                 {"max_restarts", max_restarts(run)},
                 {"space", without_words(space)},
                 {"metric", tune.metric},
                 {"mode", tune.mode},
                 {"num_samples", tune.num_samples}};
  const auto add = [](json& to, const char* key, const json& value) {
    if (!value.is_null()) to[key] = value;
  };
  if (program.empty()) search["env"] = {{kFitVariable, "1"}};
  if (!run.name.empty()) search["name"] = run.name;
  if (!run.storage_path.empty()) {
    search["storage_path"] = std::filesystem::absolute(run.storage_path).string();
  }
  const CheckpointConfig& kept = run.checkpoint_config;
  if (kept.num_to_keep) search["checkpoint"]["num_to_keep"] = *kept.num_to_keep;
  if (!kept.score_attribute.empty()) {
    search["checkpoint"]["score_attribute"] = kept.score_attribute;
    search["checkpoint"]["score_order"] = kept.score_order;
  }
  if (const double gpus = gpus_each(scaling); gpus > 0) search["resources"]["GPU"] = amount(gpus);
  if (scaling.resources_per_worker.contains("CPU")) {
    search["resources"]["CPU"] = amount(resource(scaling, "CPU"));
  }
  if (const double memory = resource(scaling, "memory"); memory > 0) {
    search["resources"]["memory"] = amount(memory);
  }
  if (tune.max_concurrent_trials) search["max_concurrent"] = *tune.max_concurrent_trials;
  if (tune.time_budget) search["time_budget_s"] = tune.time_budget->count();
  add(search, "search", tune.search_alg);
  if (!tune.points_to_evaluate.empty()) {
    if (search["search"].is_null()) search["search"] = "random";
    if (search["search"].is_string()) search["search"] = {{"algorithm", search["search"]}};
    search["search"]["points_to_evaluate"] = tune.points_to_evaluate;
  }
  add(search, "scheduler", tune.scheduler);
  add(search, "stop", tune.stop);
  return search;
}

ResultGrid results_of(const json& document) {
  std::vector<TrialResult> trials;
  for (const json& trial : member(document, "trials")) trials.push_back(trial_of(trial));
  std::sort(trials.begin(), trials.end(),
            [](const TrialResult& a, const TrialResult& b) { return a.trial < b.trial; });
  std::optional<std::uint64_t> best;
  if (const json trial = member(member(document, "best"), "trial"); trial.is_number_integer()) {
    best = trial.get<std::uint64_t>();
  }
  ResultGrid results(std::move(trials), best);
  results.search = text(document, "search");
  const std::string state = text(document, "state");
  if (state == "succeeded") return results;
  results.exit_code = exit_code_of(state);
  const std::string reason = text(document, "reason");
  results.error = reason.empty() ? "the search is " + state : reason;
  return results;
}

ResultGrid tune_as_search(const DtrainCommand& dtrain, const json& space, const TuneConfig& tune,
                          const ScalingConfig& scaling, const RunConfig& run,
                          const std::vector<std::string>& program) {
  static std::atomic<bool> called{false};
  if (program.empty() && called.exchange(true)) {
    throw Error("Tuner: a program calls fit() once: its ranks run the same main()");
  }
  check(scaling);
  const Cluster cluster(dtrain);
  const json document =
      search_document(space, tune, scaling, run, place_workers(scaling, cluster.status()), program);
  const json begun = cluster.ask({"tune", "-d", "--json", OwnFile(document.dump(1)).path()});
  const std::string search = begun.at("search").get<std::string>();
  cluster.follow({"tune", "status", "-f", search}, search, 2);
  const json result = cluster.ask({"tune", "result", "--json", search}, 2);
  const std::string state = result.value("state", "");
  if (state != "succeeded" && state != "failed" && state != "stopped") {
    throw Error("following " + search + " broke off, it is " + state + ": dtrain tune status -f " +
                search);
  }
  return results_of(result);
}

}  // namespace dtrain::train
