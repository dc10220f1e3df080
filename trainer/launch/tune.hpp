#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/metrics.hpp"
#include "trainer/launch/command.hpp"
#include "trainer/launch/fit.hpp"

// What Tuner is told and what it returns, by Ray Tune's names, and how a search is made of it.
namespace dtrain::train {

// Parameters of a space, as docs/search_yaml.md has them: {{"lr", tune::loguniform(1e-4, 1e-1)}}.
namespace tune {
nlohmann::json choice(std::vector<nlohmann::json> values);
nlohmann::json grid_search(std::vector<nlohmann::json> values);
nlohmann::json uniform(double low, double high);
nlohmann::json quniform(double low, double high, double q);
nlohmann::json loguniform(double low, double high);
nlohmann::json qloguniform(double low, double high, double q);
nlohmann::json randn(double mean = 0, double deviation = 1);
nlohmann::json randint(std::int64_t low, std::int64_t high);  // below `high`
nlohmann::json lograndint(std::int64_t low, std::int64_t high);
nlohmann::json sample_from(const std::string& expression);  // "layers * 32"
}  // namespace tune

struct TuneConfig {
  std::string metric;        // as rank 0 reports it
  std::string mode = "max";  // or min
  std::uint64_t num_samples = 1;
  std::optional<int> max_concurrent_trials;
  std::optional<std::chrono::seconds> time_budget;
  nlohmann::json search_alg;                       // "tpe", or {{"algorithm", "tpe"}, …}
  nlohmann::json scheduler;                        // "asha", or {{"algorithm", "asha"}, …}
  nlohmann::json stop;                             // {{"loss", "<= 0.1"}}
  std::vector<nlohmann::json> points_to_evaluate;  // the first trials
};

// How one trial ended.
struct TrialResult {
  std::uint64_t trial = 0;
  std::string state;  // complete, stopped, failed; others where the search was left
  std::string reason;
  nlohmann::json params;
  Metrics metrics;  // the last value of each name
  std::int64_t iterations = 0;
  std::string job;              // its newest; empty: none was begun
  std::optional<double> value;  // of the metric, the last; absent: none was reported
};

class ResultGrid {
 public:
  ResultGrid(std::vector<TrialResult> trials, std::optional<std::uint64_t> best)
      : trials_(std::move(trials)), best_(best) {}

  std::size_t size() const { return trials_.size(); }
  const TrialResult& operator[](std::size_t index) const { return trials_.at(index); }  // by number
  auto begin() const { return trials_.begin(); }
  auto end() const { return trials_.end(); }
  std::size_t num_errors() const;
  // By the last value of the metric, of those that did not fail. Throws Error where there is none.
  const TrialResult& get_best_result() const;

  std::string search;                // its id
  std::optional<std::string> error;  // why it failed or was stopped
  int exit_code = 0;                 // for main(): 0, 1 failed, 3 stopped

 private:
  std::vector<TrialResult> trials_;
  std::optional<std::uint64_t> best_;  // its number
};

// A search YAML's content (JSON is YAML) of `program` with these parameters; empty: of this
// program, as it was started, whose fit() ends its ranks. Throws Error as submit_words.
nlohmann::json search_document(const nlohmann::json& space, const TuneConfig& tune,
                               const ScalingConfig& scaling, const RunConfig& run,
                               const JobShape& shape, const std::vector<std::string>& program);

// Of `dtrain tune result --json`.
ResultGrid results_of(const nlohmann::json& document);

// Runs `program` as the trials of a search of the current cluster, as fit_as_job() does a job: the
// search is followed, Ctrl-C leaves it running. Empty: this program, with its arguments.
ResultGrid tune_as_search(const DtrainCommand& dtrain, const nlohmann::json& space,
                          const TuneConfig& tune, const ScalingConfig& scaling,
                          const RunConfig& run, const std::vector<std::string>& program);

}  // namespace dtrain::train
