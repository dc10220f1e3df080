#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "agent/head/store/rows.hpp"
#include "launcher/tune/search_spec.hpp"

// What a search stands at, and what is to be done for it: no clock, no files, no jobs. It is the
// sequence of its records: each is told once, in the order in which they are written, and whoever
// is told them again comes to the same decisions. What was decided and not done yet is still wanted
// then, so that a head that dies loses nothing and does nothing twice.
namespace dtrain::head {

using tune::Params;
using tune::TrialNumber;

// A committed checkpoint of a trial, and where the trial was with it.
struct TrialCheckpoint {
  JobId job;  // whose it is
  int number = 0;
  std::int64_t step = 0;
  std::int64_t iteration = 0;
  double time = 0;

  bool operator==(const TrialCheckpoint&) const = default;
};

// A trial is a chain of jobs, its legs, of which one at most lives.
struct Trial {
  enum class State : std::uint8_t { running, paused, complete, stopped, failed };
  // What becomes of it with the end of the leg that lives.
  enum class Fate : std::uint8_t { none, pause, exploit, complete, stop };

  TrialNumber number = 0;
  Params params;  // of its newest leg
  // Of the leg to come, after an exploit; it comes to nothing where the trial ends before.
  std::optional<Params> next_params;
  State state = State::running;
  Fate fate = Fate::none;
  std::string reason;  // what the scheduler last said, or how it ended
  std::vector<JobId> legs;
  bool leg_lives = false;
  bool goes_on = false;      // its next leg is to begin once no other lives
  bool interrupted = false;  // paused with the search, not by the scheduler
  int exploits = 0;
  std::int64_t iteration = 0;  // reports with the metric, of its line
  std::optional<std::int64_t> step;
  double time = 0;
  std::optional<double> value;  // the metric's last, with these parameters; NaN is one
  std::optional<double> best;
  std::int64_t best_iteration = 0;
  std::optional<TrialCheckpoint> checkpoint;  // the newest of its own, since its latest exploit
  std::optional<TrialCheckpoint> base;        // where its latest exploit let it begin
  // Of another trial, or an older one of its own: where the next leg starts.
  std::optional<TrialCheckpoint> from;

  // Where it was since its newest checkpoint, for the next one, which may be committed after later
  // reports: each report, or each 2nd, 4th, … of more than a thousand. What is found for a step is
  // never of a later one.
  struct Mark {
    std::int64_t step = 0;
    std::int64_t iteration = 0;
    double time = 0;
  };
  std::vector<Mark> marks;  // by step
  std::int64_t mark_every = 1;
  std::int64_t report_seq = 0;  // of the record that its next report takes the place of; 0: none

  bool ended() const { return state != State::running && state != State::paused; }
  bool operator==(const Trial& other) const;
};
const char* to_string(Trial::State state) noexcept;

class Search {
 public:
  // `spec` is without problems, and has its seed.
  explicit Search(tune::SearchSpec spec);

  // ---- What happened. Each gives its record, applied already; absent: it changes nothing.
  SearchRecord started(const Params& params, const JobId& job);  // the next trial
  SearchRecord goes_on_as(TrialNumber trial, const JobId& job);
  std::optional<SearchRecord> reported(TrialNumber trial, std::optional<std::int64_t> step,
                                       const nlohmann::json& metrics);
  std::optional<SearchRecord> checkpointed(TrialNumber trial, int number, std::int64_t step);
  // Of a trial whose next leg, or first one, could not begin too: failed.
  SearchRecord leg_ended(TrialNumber trial, JobState how, const std::string& reason);
  // A place is free: a paused trial that takes it. None: a new one does, if there are more().
  std::optional<SearchRecord> resumed();
  enum class Halt : std::uint8_t { none, person, time_budget, failures };
  // None of its trials goes on. Told again it changes the grace of those that still end, if any.
  SearchRecord halted(Halt why, const std::string& reason,
                      std::optional<std::chrono::seconds> grace = std::nullopt);
  SearchRecord continued();  // one that a person stopped
  SearchRecord learned(const Params& params, const tune::Outcome& outcome);  // before the first
  SearchRecord ended(SearchState state, const std::string& reason);

  // What was written, in its order.
  void apply(const SearchRecord& record);

  // ---- What is to be done.
  // Those whose leg lives and is to be stopped.
  const std::set<TrialNumber>& to_stop() const noexcept { return to_stop_; }
  // Those whose next leg is to begin.
  const std::set<TrialNumber>& to_go_on() const noexcept { return to_go_on_; }
  bool more() const noexcept;  // trials that have not begun, and may
  Params suggest() const { return sampler_->suggest(trials_.size()); }  // of the next one
  // Those that have a place: their leg lives, or is to begin.
  const std::set<TrialNumber>& alive() const noexcept { return alive_; }
  // None is alive, and what it ends with if resumed() gives none.
  struct Ending {
    SearchState state = SearchState::succeeded;
    std::string reason;
  };
  std::optional<Ending> ending() const;
  // Numbers of the job's checkpoints that a next leg starts from: they are not to go before.
  std::set<int> pinned(const JobId& job) const;

  // ---- What it stands at.
  const tune::SearchSpec& spec() const noexcept { return spec_; }
  const std::vector<Trial>& trials() const noexcept { return trials_; }
  const Trial* find(TrialNumber trial) const noexcept;
  std::uint64_t total() const noexcept { return total_; }
  Halt halt() const noexcept { return halt_; }
  const std::string& halt_reason() const noexcept { return halt_reason_; }
  // Absent: that of its trials' jobs.
  std::optional<std::chrono::seconds> halt_grace() const noexcept { return halt_grace_; }
  // The best by the last value, of those that have not failed; null while there is none.
  const Trial* best() const noexcept;
  nlohmann::json scheduler_state() const { return scheduler_->state(); }
  // What pbt did, and what made a trial what it is: pbt_replay's `schedule`. Null elsewhere.
  nlohmann::json exploitations() const;
  nlohmann::json schedule_of(TrialNumber trial) const;
  // Of the trial as others may learn from it; absent: nothing can be.
  static std::optional<tune::Outcome> outcome_of(const Trial& trial);

 private:
  SearchRecord make(SearchRecord::Kind kind, TrialNumber trial);
  SearchRecord tell(SearchRecord record);
  void apply_report(Trial& trial, const SearchRecord& record);
  void apply_checkpoint(Trial& trial, const SearchRecord& record);
  void apply_leg_end(Trial& trial, const SearchRecord& record);
  void apply_continued();
  void apply_end(const SearchRecord& record);
  void decide(Trial& trial, const tune::Decision& decision);
  void exploit(Trial& trial, const tune::Exploit& exploit);
  void apply_leg(Trial& trial, const JobId& job);
  // Nothing more comes of it, or will.
  void settle(Trial& trial, const tune::Outcome& outcome);
  void end(Trial& trial, Trial::State state, const std::string& reason);
  void set_halt(Halt why, const std::string& reason);
  // Brings the sets up to date with what the trial is now.
  void sort(const Trial& trial);
  bool keeps_reports() const noexcept;
  bool is_better(double value, double than) const noexcept;

  tune::SearchSpec spec_;
  std::uint64_t total_;
  std::unique_ptr<tune::Sampler> sampler_;
  std::unique_ptr<tune::Scheduler> scheduler_;
  std::vector<Trial> trials_;  // by number
  std::set<TrialNumber> to_stop_;
  std::set<TrialNumber> to_go_on_;
  std::set<TrialNumber> alive_;
  std::set<TrialNumber> paused_;
  std::set<TrialNumber> pinning_;  // that have `from`
  Halt halt_ = Halt::none;
  std::string halt_reason_;
  std::optional<std::chrono::seconds> halt_grace_;
  bool ended_ = false;
  int failed_ = 0;
  int well_ = 0;
  std::int64_t next_seq_ = 1;
};

}  // namespace dtrain::head
