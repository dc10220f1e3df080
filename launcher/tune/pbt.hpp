#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/tune/random.hpp"
#include "launcher/tune/scheduler.hpp"

// Population based training: Jaderberg et al. (arXiv 1711.09846), with the options of Ray's
// scheduler of that name, not synchronous. Every perturbation_interval a trial is compared with all
// others by their last score; one of the worst quantile begins again from the checkpoint of one of
// the best, with perturbed parameters. Where Ray differs: a perturbed number stays within its
// domain's bounds, a trial whose metric is no number is among the worst (Ray leaves it alone), and
// only a trial with a checkpoint is ever a donor.
namespace dtrain::tune {

// Which trials are the lower and the upper ones of n: how many at each end.
std::size_t pbt_quantile(std::size_t n, double fraction);

// The donor's parameters, each that mutates resampled or perturbed: a choice moves to a neighbour
// in its list, a number is multiplied by a factor. What is computed of others is computed anew.
struct Explored {
  Params params;
  std::vector<std::string> changes;
};
Explored pbt_explore(const PbtSpec& spec, const SearchSpace& space, const Params& donor,
                     std::uint64_t seed, TrialNumber trial, int perturbation);

// One exploit, as it is kept: all of them are the family tree.
struct Exploitation {
  TrialNumber trial = 0;
  double time = 0;   // of the trial's report
  double value = 0;  // of its metric
  TrialNumber donor = 0;
  double donor_time = 0;  // of the checkpoint
  double donor_value = 0;
  Params params;                      // from then on
  std::optional<std::size_t> before;  // of the donor: its own latest one
  bool is_void = false;               // the trial ended before it came to be
};
nlohmann::json to_json(const Exploitation& each);

class Pbt : public Scheduler {
 public:
  Pbt(const PbtSpec& spec, const SearchSpace& space, Mode mode, std::uint64_t seed,
      std::uint64_t trials);
  // The trial that is least far; none while trials have not begun.
  std::optional<Resumption> resume() override;
  nlohmann::json state() const override;

  void not_exploited(TrialNumber trial) override;

  const std::vector<Exploitation>& record() const noexcept { return record_; }
  // What made the trial what it is: the first parameters of its line, and each change with the time
  // from which it held. PbtReplay runs it again.
  std::vector<ScheduleStep> schedule_of(TrialNumber trial) const;

 protected:
  void on_added(TrialNumber trial, const Params& params) override;
  Decision decide(const Measured& report) override;
  void on_checkpoint(TrialNumber trial, double time) override;
  void on_ended(TrialNumber trial) override;

 private:
  // The worst first, among equals the one that was added first.
  using Place = std::pair<double, TrialNumber>;
  struct Member {
    Params params;
    Params first_params;
    TrialNumber founder = 0;  // whose first_params the line began with
    std::optional<Place> place;
    double value = 0;
    double perturbed = 0;  // time
    double trained = 0;    // time
    std::optional<double> checkpoint;
    std::optional<std::size_t> latest;  // of record_
    // What `latest` and `founder` were before it.
    std::optional<std::size_t> previous;
    TrialNumber previous_founder = 0;
    int perturbations = 0;
  };

  Decision exploit(TrialNumber trial, const Measured& report,
                   const std::vector<TrialNumber>& donors);
  bool others_wait() const noexcept { return added_ < trials_ || !paused_.empty(); }
  void pause(TrialNumber trial);

  PbtSpec spec_;
  SearchSpace space_;
  std::uint64_t seed_;
  std::uint64_t trials_;
  std::uint64_t added_ = 0;
  std::map<TrialNumber, Member> members_;
  std::vector<Place> ranking_;                       // of those that have not ended
  std::set<std::pair<double, TrialNumber>> paused_;  // by how far they are
  std::vector<Exploitation> record_;
  std::size_t void_ = 0;  // of record_
};

// One trial along a recorded schedule: it goes on from its own checkpoint with a step's parameters,
// as soon as it has one that is of the step's time or later. It begins with those of the first
// step.
class PbtReplay : public Scheduler {
 public:
  PbtReplay(std::vector<ScheduleStep> schedule, Mode mode)
      : Scheduler(mode), schedule_(std::move(schedule)) {}

 protected:
  Decision decide(const Measured& report) override;
  void on_checkpoint(TrialNumber, double time) override { checkpoint_ = time; }

 private:
  std::vector<ScheduleStep> schedule_;
  std::size_t next_ = 1;
  std::optional<double> checkpoint_;
};

}  // namespace dtrain::tune
