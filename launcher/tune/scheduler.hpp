#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/tune/objective.hpp"
#include "launcher/tune/sampler.hpp"
#include "launcher/tune/space.hpp"

// What becomes of a trial while it runs. A scheduler is the sequence of what it was told: told the
// same in the same order it decides the same, without a clock and, given its seed, without chance.
//
// - A report without the metric or the time is not told at all (see measured()).
// - One whose time is not beyond the trial's last one is passed over: a trial that goes on from a
//   checkpoint reports again what is known.
// - A metric that is no finite number is worse than any number.
namespace dtrain::tune {

struct AshaSpec {
  enum class Form : std::uint8_t {
    stop,     // Ray's: at a rung the worse ones end, the others go on
    promote,  // the paper's: at a rung all pause, and the best go on when there is a place
  };

  double max_t = 100;
  double grace_period = 1;  // the first rung
  double reduction_factor = 4;
  int brackets = 1;              // of which each begins a rung later
  bool stop_last_trials = true;  // false: a trial goes on beyond max_t; stop only
  Form form = Form::stop;
};

struct MedianSpec {
  double grace_period = 1;
  int min_samples_required = 3;
};

struct PbtSpec {
  double perturbation_interval = 5;
  double burn_in_period = 0;
  double quantile_fraction = 0.25;
  double resample_probability = 0.25;
  std::vector<double> perturbation_factors = {1.2, 0.8};
  std::map<std::string, Domain> mutations;  // absent in JSON: all that is sampled, by its domain
  bool mutations_given = false;             // false: they follow from the space
};

// From when on which parameters: what a trial of PBT went through, see pbt.hpp.
struct ScheduleStep {
  double time = 0;
  Params params;
};

// `scheduler` of a YAML: "asha", or {algorithm: asha, max_t: 81, …}.
struct SchedulerSpec {
  enum class Algorithm : std::uint8_t { fifo, asha, median_stopping, pbt, pbt_replay };
  static constexpr std::array kNames = {"fifo", "asha", "median_stopping", "pbt", "pbt_replay"};

  Algorithm algorithm = Algorithm::fifo;
  std::string time_attr = kIteration;
  AshaSpec asha;
  MedianSpec median;
  PbtSpec pbt;
  std::vector<ScheduleStep> schedule;  // of pbt_replay; the first from time 0

  static constexpr double kLongest = 1e15;  // of times
  static constexpr int kMostBrackets = 32;
  static constexpr int kMostRungs = 1'000;
  static constexpr std::size_t kMostSteps = 100'000;
};
const char* to_string(SchedulerSpec::Algorithm algorithm) noexcept;
SchedulerSpec scheduler_spec_from_json(const nlohmann::json& json, const SearchSpace& space,
                                       const Path& path, Problems& problems);
nlohmann::json to_json(const SchedulerSpec& spec);
// What does not go together, of a search of so many trials; `path` is the scheduler's.
void check_together(const SamplerSpec& sampler, const SchedulerSpec& scheduler,
                    std::uint64_t trials, const Path& path, Problems& problems);

enum class Action : std::uint8_t {
  go_on,
  stop,     // it ends, and counts with what it reported
  pause,    // it gives its place back and waits, with its checkpoint, for resume() to name it
  exploit,  // it begins again from another trial's checkpoint, with other parameters
};
const char* to_string(Action action) noexcept;

struct Exploit {
  TrialNumber donor = 0;  // whose newest checkpoint to copy; pbt_replay: the trial itself
  double time = 0;        // the time of that checkpoint, from which the trial goes on
  Params params;          // the trial's from now on
  std::vector<std::string> changes;  // for people: "lr: 0.1 * 0.8 = 0.08"
  bool waits = false;                // it gives its place back too, and waits for resume()
};

struct Decision {
  Action action = Action::go_on;
  std::string reason;  // in words, for status
  std::optional<Exploit> exploit;
};

struct Resumption {
  TrialNumber trial = 0;
  std::string reason;
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // A trial that was not there before, with the parameters that it starts with. Every one: one that
  // could not start is added and ended, for others may wait for it.
  void added(TrialNumber trial, const Params& params);
  // A report, in the order in which they come. Of a trial that is not there or has ended: go_on.
  Decision reported(const Measured& report);
  // A checkpoint of the trial is committed, made at that time by the attempt that runs (not by one
  // from before an exploit); older ones count no more.
  void checkpointed(TrialNumber trial, double time);
  // Nothing more comes of it: it is complete, stopped, failed for good.
  void ended(TrialNumber trial);
  // It ended before its last exploit came to be: it is what it was.
  virtual void not_exploited(TrialNumber) {}
  // A place is free: the paused trial that goes on there. Asked before a new trial is started, and
  // an answer is as good as done. None: start a new one, and if there are no more, what is paused
  // when nothing runs stays behind and ends.
  virtual std::optional<Resumption> resume() { return std::nullopt; }

  // For status: what it stands at, an object of the algorithm's own.
  virtual nlohmann::json state() const { return nlohmann::json::object(); }

 protected:
  explicit Scheduler(Mode mode) : mode_(mode) {}

  virtual void on_added(TrialNumber, const Params&) {}
  virtual Decision decide(const Measured& report) = 0;
  virtual void on_checkpoint(TrialNumber, double /*time*/) {}
  virtual void on_ended(TrialNumber) {}

  Mode mode_;

 private:
  std::map<TrialNumber, double> last_time_;  // of those that have not ended
};

// `trials` is how many there will be in all: PBT pauses trials while others wait to begin, and
// promoting ASHA knows by it when no better one can come. Without a limit: UINT64_MAX.
std::unique_ptr<Scheduler> make_scheduler(const SchedulerSpec& spec, const SearchSpace& space,
                                          Mode mode, std::uint64_t seed, std::uint64_t trials);

}  // namespace dtrain::tune
