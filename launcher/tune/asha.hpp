#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "launcher/tune/scheduler.hpp"

// Asynchronous successive halving: Li et al., A system for massively parallel hyperparameter tuning
// (arXiv 1810.05934).
namespace dtrain::tune {

// The rungs of the stopping form; decides as ray.tune.schedulers.async_hyperband._Bracket does
// (where the logarithms that it counts rungs by lose the last one, as of 1,000 by 10, it is there).
class AshaBracket {
 public:
  AshaBracket(double grace_period, double max_t, double reduction_factor, int number,
              bool stop_last_trials);

  // The milestone at which the trial's score was noted, if it was, and whether the trial is to end.
  struct Answer {
    std::optional<double> milestone;
    std::optional<double> cutoff;  // what was needed there; absent: nobody was there before
    bool stop = false;
  };
  Answer report(TrialNumber trial, double time, double score);

  struct Rung {
    double milestone = 0;
    std::set<TrialNumber> trials;
    std::vector<double> scores;  // the finite ones, in order

    std::optional<double> cutoff(double reduction_factor) const;
  };
  const std::vector<Rung>& rungs() const noexcept { return rungs_; }  // the lowest first

 private:
  double reduction_factor_;
  bool stop_last_trials_;
  std::vector<Rung> rungs_;
};

// milestones grace_period · factor^(number + k), up to max_t.
std::vector<double> asha_milestones(double grace_period, double max_t, double reduction_factor,
                                    int number);
// Which bracket a trial is in: by chance, one with more rungs more often, as in Ray.
std::size_t asha_bracket(const std::vector<std::size_t>& rungs, std::uint64_t seed,
                         TrialNumber trial);

class AshaStopping : public Scheduler {
 public:
  AshaStopping(const AshaSpec& spec, Mode mode, std::uint64_t seed);
  nlohmann::json state() const override;

 protected:
  void on_added(TrialNumber trial, const Params&) override;
  Decision decide(const Measured& report) override;
  void on_ended(TrialNumber trial) override { bracket_of_.erase(trial); }

 private:
  AshaSpec spec_;
  std::uint64_t seed_;
  std::vector<AshaBracket> brackets_;
  std::map<TrialNumber, std::size_t> bracket_of_;
};

// Algorithm 2 of the paper: each trial runs to its rung's milestone and pauses there; whenever a
// place is free, the best that is among the top 1/factor of its rung and was not promoted goes on,
// from the highest rung down. One that may go on at once does not pause first. The paper's search
// has no end; at the end of this one, when all trials have begun and none runs, the best of the
// highest rung goes on nevertheless, until one has reached max_t.
class AshaPromoting : public Scheduler {
 public:
  AshaPromoting(const AshaSpec& spec, Mode mode, std::uint64_t seed, std::uint64_t trials);
  std::optional<Resumption> resume() override;
  nlohmann::json state() const override;

 protected:
  void on_added(TrialNumber trial, const Params&) override;
  Decision decide(const Measured& report) override;
  void on_ended(TrialNumber trial) override;

 private:
  // Best first, among equals the one that came first.
  using Place = std::pair<double, TrialNumber>;  // minus the score
  struct Rung {
    double milestone = 0;
    std::vector<Place> all;  // in order
    std::set<Place> open;    // not promoted, and not ended
  };
  struct Standing {
    std::size_t bracket = 0;
    std::size_t rung = 0;       // whose milestone it runs to, or stands at
    std::optional<Place> open;  // it is paused there
  };

  // The best that may leave this rung.
  std::optional<Place> promotable(const Rung& rung) const;
  void promote(Rung& rung, const Place& place);
  Resumption resumed(Rung& rung, const Place& place, const std::string& why);
  std::optional<Resumption> resume_last();

  AshaSpec spec_;
  std::uint64_t seed_;
  std::uint64_t trials_;
  std::uint64_t added_ = 0;
  std::uint64_t running_ = 0;                // neither paused nor ended
  std::vector<std::vector<Rung>> brackets_;  // the last rung of each is max_t, where trials end
  std::map<TrialNumber, Standing> standing_;
};

}  // namespace dtrain::tune
