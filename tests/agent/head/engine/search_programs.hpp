#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/head/engine/search.hpp"
#include "launcher/core/error.hpp"
#include "tests/agent/head/engine/world.hpp"

namespace dtrain::head::testing {

// What search_spec_of() is told, for each kind of search.
inline constexpr const char* kAsha = R"({"num_samples": 9, "max_concurrent": 3,
    "scheduler": {"algorithm": "asha", "max_t": 9, "reduction_factor": 3}})";
inline constexpr const char* kPromoting = R"({"num_samples": 9, "max_concurrent": 3,
    "scheduler": {"algorithm": "asha", "max_t": 9, "reduction_factor": 3, "form": "promote"}})";
inline constexpr const char* kPbt = R"({"num_samples": 4, "max_concurrent": 4,
    "job": {"checkpoint": {"num_to_keep": 1}},
    "scheduler": {"algorithm": "pbt", "perturbation_interval": 2}})";
inline constexpr const char* kTpe = R"({"num_samples": 8, "max_concurrent": 2,
    "search": {"algorithm": "tpe", "n_startup_trials": 3}})";

// A search over `lr`, and what `more` says, as JSON that is merged into it.
tune::SearchSpec search_spec_of(const std::string& more);

// What a search's trials run: one rank each on node-0, told what happens by hand. What a head has
// not acknowledged is told to the next one again, as supervisors do. `world` outlives it.
class SearchPrograms {
 public:
  explicit SearchPrograms(World& world, int cpus = 4) : world_(world) {
    world.join("node-0", {}, cpus);
  }

  int length = 9;  // steps until a program ends by itself
  bool checkpoints = false;
  std::set<std::uint64_t> failing;  // trials that fail at their first step
  // What is told in a step is not on the disk at its end, nor is what follows from it.
  bool lossy = false;

  nlohmann::json ask(const std::function<void(Engine::Answer)>& start) {
    std::optional<nlohmann::json> answer;
    start([&](nlohmann::json told) { answer = std::move(told); });
    world_.until([&] { return answer.has_value(); });
    return *answer;
  }

  SearchId submit(const std::string& more, const std::map<std::string, std::string>& secrets = {},
                  const std::optional<StartCheckpoint>& start = std::nullopt);

  // A checkpoint of a job whose search has ended.
  StartCheckpoint trained();

  nlohmann::json view(std::size_t trials = 1000) {
    return ask(
        [&](Engine::Answer done) { world_.engine->search(search, trials, std::move(done)); });
  }
  nlohmann::json trials() {
    return ask([&](Engine::Answer done) {
             world_.engine->search_trials(search, 0, 1000, std::move(done));
           })
        .at("trials");
  }
  std::string state() { return summary().at("state"); }
  nlohmann::json summary();
  bool is_over() {
    const std::string now = state();
    return now != "running" && now != "stopping";
  }

  // The head; the next one hears what this one has not acknowledged.
  void die();

  // Takes what was started and stopped. Then one of those that run gets one step further.
  void step();

  // Those too that are no search's.
  void run_jobs() {
    while (world_.engine->open_job()) step();
    world_.settle();
  }

  void run() {
    for (int turn = 0; turn < 5000 && !is_over(); ++turn) step();
    REQUIRE(is_over());
    world_.settle();
  }

  struct Program {
    std::uint64_t trial = 0;
    double lr = 0;
    int done = 0;
    bool stopping = false;
    bool finished = false;
    std::pair<int, std::uint64_t> behind() const { return {done, trial}; }
  };
  std::map<JobId, Program> programs;
  SearchId search;

 private:
  bool unacknowledged(const JobId& id) {
    return world_.acknowledged("node-0", id, 1) < said_[id].size();
  }

  void say(const JobId& id, wire::AttemptEventBody body) {
    said_[id].push_back(body);
    world_.seqs[{"node-0", id.str(), 1}] = said_[id].size();
    world_.repeat("node-0", id, 1, said_[id].size(), std::move(body));
  }

  void take();
  void report(const JobId& id, Program& program);
  void finish(const JobId& id, Program& program, wire::NodeFinished::Outcome outcome);

  World& world_;
  std::map<JobId, std::vector<wire::AttemptEventBody>> said_;
  std::size_t taken_ = 0;
  std::size_t looked_ = 0;
};

// What of a trial does not hang on ids, which are drawn.
std::string told(const nlohmann::json& trials);

// How the call is refused; internal if it is not.
ErrorCode refusal(const std::function<void()>& call);

}  // namespace dtrain::head::testing
