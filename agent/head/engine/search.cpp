#include "agent/head/engine/search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "launcher/core/text.hpp"
#include "launcher/tune/pbt.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {
namespace {

using Kind = SearchRecord::Kind;
using State = Trial::State;
using Fate = Trial::Fate;

constexpr std::size_t kMarks = 1000;
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

bool same(const std::optional<double>& a, const std::optional<double>& b) {
  return a.has_value() == b.has_value() && (!a || *a == *b || (std::isnan(*a) && std::isnan(*b)));
}

using Marks = std::vector<Trial::Mark>;

// Behind the newest one that is not later than `step`.
Marks::const_iterator behind(const Marks& marks, std::int64_t step) {
  return std::ranges::upper_bound(marks, step, {}, &Trial::Mark::step);
}

void mark(Trial& trial, std::int64_t step) {
  if (trial.iteration % trial.mark_every != 0) return;
  while (trial.marks.size() >= kMarks) {
    trial.mark_every *= 2;
    std::erase_if(trial.marks,
                  [&](const auto& each) { return each.iteration % trial.mark_every != 0; });
  }
  trial.marks.push_back({step, trial.iteration, trial.time});
}

void forget_marks_before(Trial& trial, std::int64_t step) {
  const auto later = behind(trial.marks, step);
  if (later != trial.marks.begin()) trial.marks.erase(trial.marks.begin(), std::prev(later));
  trial.mark_every = 1;
}

}  // namespace

const char* to_string(State state) noexcept {
  constexpr const char* kNames[] = {"running", "paused", "complete", "stopped", "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

bool Trial::operator==(const Trial& other) const {
  return number == other.number && params == other.params && next_params == other.next_params &&
         state == other.state && fate == other.fate && reason == other.reason &&
         legs == other.legs && leg_lives == other.leg_lives && goes_on == other.goes_on &&
         interrupted == other.interrupted && exploits == other.exploits &&
         iteration == other.iteration && step == other.step && time == other.time &&
         same(value, other.value) && same(best, other.best) &&
         best_iteration == other.best_iteration && checkpoint == other.checkpoint &&
         base == other.base && from == other.from;
}

Search::Search(tune::SearchSpec spec)
    : spec_(std::move(spec)),
      total_(spec_.trials()),
      sampler_(tune::make_sampler(spec_.space, spec_.search, spec_.objective.mode)),
      scheduler_(tune::make_scheduler(spec_.scheduler, spec_.space, spec_.objective.mode,
                                      spec_.search.seed.value_or(0), total_)) {}

const Trial* Search::find(TrialNumber trial) const noexcept {
  return trial < trials_.size() ? &trials_[static_cast<std::size_t>(trial)] : nullptr;
}

// Without a scheduler and conditions nobody decides anything by a report: the last one is enough.
bool Search::keeps_reports() const noexcept {
  return spec_.scheduler.algorithm != tune::SchedulerSpec::Algorithm::fifo || !spec_.stop.empty();
}

bool Search::is_better(double value, double than) const noexcept {
  return tune::score(spec_.objective.mode, value) > tune::score(spec_.objective.mode, than);
}

// ---- What happened.

SearchRecord Search::make(Kind kind, TrialNumber trial) {
  SearchRecord record;
  record.seq = next_seq_;
  record.kind = kind;
  record.trial = trial;
  return record;
}

SearchRecord Search::tell(SearchRecord record) {
  apply(record);
  return record;
}

SearchRecord Search::started(const Params& params, const JobId& job) {
  SearchRecord record = make(Kind::started, trials_.size());
  record.text = wire::dump(nlohmann::json(params));
  record.job = job.str();
  return tell(std::move(record));
}

SearchRecord Search::goes_on_as(TrialNumber trial, const JobId& job) {
  SearchRecord record = make(Kind::leg, trial);
  record.job = job.str();
  return tell(std::move(record));
}

std::optional<SearchRecord> Search::reported(TrialNumber number, std::optional<std::int64_t> step,
                                             const nlohmann::json& metrics) {
  const Trial* trial = find(number);
  if (trial == nullptr || !trial->leg_lives || trial->fate == Fate::complete ||
      trial->fate == Fate::stop) {
    return std::nullopt;
  }
  // As after a restart from a checkpoint: what it tells is known.
  if (step && trial->step && *step < *trial->step) return std::nullopt;
  const auto measured = tune::measured(metrics, number, trial->iteration + 1,
                                       spec_.objective.metric, spec_.scheduler.time_attr);
  // Of the same step the metric is known, and other names may be new.
  const bool counts = measured && (!step || step != trial->step) &&
                      (trial->iteration == 0 || measured->time > trial->time);
  const auto met = tune::stop_reason(spec_.stop, metrics, trial->iteration + (counts ? 1 : 0));
  if (!counts && (measured || !met)) return std::nullopt;
  SearchRecord record = make(counts ? Kind::reported : Kind::met, number);
  record.text = met.value_or("");
  if (counts) {
    if (!keeps_reports() && trial->report_seq != 0) record.seq = trial->report_seq;
    record.iteration = trial->iteration + 1;
    record.step = step;
    record.time = measured->time;
    if (!std::isnan(measured->value)) record.value = measured->value;
    const bool better = !trial->best || is_better(measured->value, *trial->best);
    record.number = better ? record.iteration : trial->best_iteration;
    record.best = better ? record.value : trial->best;
  }
  return tell(std::move(record));
}

std::optional<SearchRecord> Search::checkpointed(TrialNumber number, int checkpoint,
                                                 std::int64_t step) {
  const Trial* trial = find(number);
  if (trial == nullptr || trial->legs.empty() || trial->ended()) return std::nullopt;
  SearchRecord record = make(Kind::checkpointed, number);
  record.number = checkpoint;
  record.step = step;
  record.iteration = trial->iteration;
  record.time = trial->time;
  if (trial->step && step < *trial->step && !trial->marks.empty()) {
    const auto later = behind(trial->marks, step);
    const TrialCheckpoint base = trial->base.value_or(TrialCheckpoint{});
    const bool is_first = later == trial->marks.begin();
    record.iteration = is_first ? base.iteration : std::prev(later)->iteration;
    record.time = is_first ? base.time : std::prev(later)->time;
  }
  return tell(std::move(record));
}

SearchRecord Search::leg_ended(TrialNumber trial, JobState how, const std::string& reason) {
  SearchRecord record = make(Kind::leg_ended, trial);
  record.number = static_cast<std::int64_t>(how);
  record.text = reason;
  return tell(std::move(record));
}

std::optional<SearchRecord> Search::resumed() {
  if (halt_ != Halt::none || ended_) return std::nullopt;
  const auto resumption = scheduler_->resume();
  if (!resumption) return std::nullopt;
  SearchRecord record = make(Kind::resumed, resumption->trial);
  record.text = resumption->reason;
  // The scheduler has been asked; replayed, it is asked in apply().
  ++next_seq_;
  Trial& trial = trials_.at(static_cast<std::size_t>(resumption->trial));
  trial.goes_on = true;
  trial.reason = resumption->reason;
  sort(trial);
  return record;
}

SearchRecord Search::halted(Halt why, const std::string& reason,
                            std::optional<std::chrono::seconds> grace) {
  SearchRecord record = make(Kind::halted, 0);
  record.number = static_cast<std::int64_t>(why);
  if (grace) record.step = grace->count();
  record.text = reason;
  return tell(std::move(record));
}

SearchRecord Search::continued() {
  return tell(make(Kind::continued, 0));
}

SearchRecord Search::learned(const Params& params, const tune::Outcome& outcome) {
  SearchRecord record = make(Kind::learned, 0);
  record.number = static_cast<std::int64_t>(outcome.state);
  record.time = outcome.time;
  record.value = outcome.value;
  record.text = wire::dump(nlohmann::json(params));
  return tell(std::move(record));
}

SearchRecord Search::ended(SearchState state, const std::string& reason) {
  SearchRecord record = make(Kind::ended, 0);
  record.number = static_cast<std::int64_t>(state);
  record.text = reason;
  return tell(std::move(record));
}

// ---- What follows from it.

void Search::apply(const SearchRecord& record) {
  next_seq_ = std::max(next_seq_, record.seq + 1);
  switch (record.kind) {
    case Kind::learned: {
      const tune::Outcome outcome{static_cast<tune::Outcome::State>(record.number),
                                  record.value.value_or(kNotANumber), record.time.value_or(0)};
      sampler_->learn(wire::parse_json(record.text, "what was learned").get<Params>(), outcome);
      return;
    }
    case Kind::started: {
      Trial& trial = trials_.emplace_back();
      trial.number = trials_.size() - 1;
      trial.params = wire::parse_json(record.text, "a trial's parameters").get<Params>();
      trial.leg_lives = !record.job.empty();
      if (trial.leg_lives) trial.legs.emplace_back(record.job);
      sampler_->started(trial.number, trial.params);
      scheduler_->added(trial.number, trial.params);
      sort(trial);
      return;
    }
    case Kind::halted:
      if (record.step) halt_grace_ = std::chrono::seconds(*record.step);
      set_halt(static_cast<Halt>(record.number), record.text);
      return;
    case Kind::continued:
      apply_continued();
      return;
    case Kind::ended:
      apply_end(record);
      return;
    case Kind::leg:
    case Kind::reported:
    case Kind::met:
    case Kind::checkpointed:
    case Kind::leg_ended:
    case Kind::resumed:
      break;
  }
  Trial& trial = trials_.at(static_cast<std::size_t>(record.trial));
  if (record.kind == Kind::leg) {
    apply_leg(trial, JobId(record.job));
  } else if (record.kind == Kind::reported) {
    apply_report(trial, record);
  } else if (record.kind == Kind::met) {
    trial.fate = Fate::complete;
    trial.reason = record.text;
    settle(trial, {tune::Outcome::State::complete, trial.value.value_or(kNotANumber), trial.time});
  } else if (record.kind == Kind::checkpointed) {
    apply_checkpoint(trial, record);
  } else if (record.kind == Kind::leg_ended) {
    apply_leg_end(trial, record);
  } else {  // resumed
    (void)scheduler_->resume();
    trial.goes_on = true;
    trial.reason = record.text;
  }
  sort(trial);
}

void Search::apply_continued() {
  halt_ = Halt::none;
  halt_reason_.clear();
  halt_grace_.reset();
  ended_ = false;
  const std::set<TrialNumber> now = paused_;
  for (const TrialNumber number : now) {
    Trial& trial = trials_[static_cast<std::size_t>(number)];
    if (!std::exchange(trial.interrupted, false)) continue;
    trial.goes_on = true;
    sort(trial);
  }
}

void Search::apply_report(Trial& trial, const SearchRecord& record) {
  const double value = record.value.value_or(kNotANumber);
  trial.iteration = record.iteration;
  if (record.step) trial.step = record.step;
  trial.time = record.time.value_or(0);
  trial.value = value;
  trial.best = record.best ? record.best : std::optional(kNotANumber);
  trial.best_iteration = record.number;
  trial.report_seq = record.seq;
  if (record.step && keeps_reports()) mark(trial, *record.step);
  const tune::Measured measured{trial.number, trial.time, value};
  const bool is_pbt = spec_.scheduler.algorithm == tune::SchedulerSpec::Algorithm::pbt;
  // It is being stopped: what it still reports counts, and is no more a matter of decisions.
  const bool is_decided = trial.fate != Fate::none || halt_ != Halt::none;
  if (!record.text.empty()) {
    // The others are compared with what it came to; pbt would move it.
    if (!is_pbt && !is_decided) (void)scheduler_->reported(measured);
    trial.fate = Fate::complete;
    trial.reason = record.text;
    settle(trial, {tune::Outcome::State::complete, value, trial.time});
    return;
  }
  // A checkpoint that came before the report of its step.
  if (trial.checkpoint && record.step && trial.checkpoint->step >= *record.step &&
      keeps_reports() && trial.checkpoint->job == trial.legs.back()) {
    trial.checkpoint->iteration = trial.iteration;
    trial.checkpoint->time = trial.time;
    if (!trial.next_params) scheduler_->checkpointed(trial.number, trial.time);
  }
  if (!is_decided) decide(trial, scheduler_->reported(measured));
}

void Search::decide(Trial& trial, const tune::Decision& decision) {
  trial.reason = decision.reason;
  switch (decision.action) {
    case tune::Action::go_on:
      return;
    case tune::Action::pause:
      trial.fate = Fate::pause;
      return;
    case tune::Action::exploit:
      exploit(trial, *decision.exploit);
      return;
    case tune::Action::stop: {
      const tune::SchedulerSpec& scheduler = spec_.scheduler;
      // It went as far as any may.
      const bool is_whole = scheduler.algorithm == tune::SchedulerSpec::Algorithm::asha &&
                            trial.time >= scheduler.asha.max_t;
      trial.fate = is_whole ? Fate::complete : Fate::stop;
      settle(trial, {is_whole ? tune::Outcome::State::complete : tune::Outcome::State::stopped,
                     trial.value.value_or(kNotANumber), trial.time});
      return;
    }
  }
}

void Search::exploit(Trial& trial, const tune::Exploit& exploit) {
  const Trial& donor = trials_.at(static_cast<std::size_t>(exploit.donor));
  trial.from = donor.checkpoint ? donor.checkpoint : donor.base;
  trial.next_params = exploit.params;
  trial.fate = Fate::exploit;
  trial.goes_on = !exploit.waits;
  for (const std::string& change : exploit.changes) trial.reason += "; " + change;
}

void Search::apply_leg(Trial& trial, const JobId& job) {
  trial.legs.push_back(job);
  trial.leg_lives = true;
  trial.goes_on = false;
  trial.state = State::running;
  trial.report_seq = 0;
  if (trial.next_params) {
    // From here on it is what it was exploited to be: nothing that it reported is of that.
    trial.params = *std::exchange(trial.next_params, std::nullopt);
    ++trial.exploits;
    trial.base = trial.from;
    trial.checkpoint.reset();
    trial.marks.clear();
    trial.value.reset();
    trial.best.reset();
    trial.best_iteration = 0;
    const TrialCheckpoint from = trial.from.value_or(TrialCheckpoint{});
    trial.iteration = from.iteration;
    trial.time = from.time;
    if (trial.step) trial.step = from.step;
  }
  trial.from.reset();
}

void Search::apply_checkpoint(Trial& trial, const SearchRecord& record) {
  trial.checkpoint =
      TrialCheckpoint{trial.legs.back(), static_cast<int>(record.number), record.step.value_or(0),
                      record.iteration, record.time.value_or(0)};
  forget_marks_before(trial, trial.checkpoint->step);
  // One behind an exploit's decision is of a line that is left: it makes no donor.
  if (!trial.ended() && !trial.next_params) {
    scheduler_->checkpointed(trial.number, trial.checkpoint->time);
  }
}

void Search::apply_leg_end(Trial& trial, const SearchRecord& record) {
  trial.leg_lives = false;
  const auto how = static_cast<JobState>(record.number);
  const Fate fate = std::exchange(trial.fate, Fate::none);
  if (fate == Fate::complete || fate == Fate::stop) {
    ++well_;
    end(trial, fate == Fate::complete ? State::complete : State::stopped, trial.reason);
    return;
  }
  const double value = trial.value.value_or(kNotANumber);
  if (how == JobState::succeeded) {
    ++well_;
    settle(trial, {tune::Outcome::State::complete, value, trial.time});
    end(trial, State::complete,
        trial.value ? record.text
                    : "it has not reported " + spec_.objective.metric +
                          (trial.exploits > 0 ? " with its latest parameters" : ""));
    return;
  }
  if (how == JobState::failed) {
    settle(trial, {tune::Outcome::State::failed, value, trial.time});
    end(trial, State::failed, record.text);
    if (spec_.fail_fast.first) {
      set_halt(Halt::failures, "trial " + std::to_string(trial.number) +
                                   " failed, and fail_fast "
                                   "is true");
    } else if (spec_.fail_fast.without_success > 0 && well_ == 0 &&
               failed_ >= spec_.fail_fast.without_success) {
      set_halt(Halt::failures, std::to_string(failed_) +
                                   " trials failed, and none ended well "
                                   "(fail_fast)");
    }
    return;
  }
  if (fate == Fate::pause || fate == Fate::exploit) {
    trial.state = State::paused;
  } else if (halt_ == Halt::person) {
    trial.state = State::paused;
    trial.interrupted = true;
    trial.reason = halt_reason_;
  } else {
    // By the time budget, by failures of others, or by a person, who says nothing of its worth.
    settle(trial, {tune::Outcome::State::failed, value, trial.time});
    end(trial, State::stopped, halt_ == Halt::none ? record.text : halt_reason_);
  }
  // One without steps counts on from what it goes on from.
  if (trial.state == State::paused && fate != Fate::exploit && !trial.step) {
    const TrialCheckpoint from =
        (trial.checkpoint ? trial.checkpoint : trial.base).value_or(TrialCheckpoint{});
    trial.iteration = from.iteration;
    trial.time = from.time;
  }
}

void Search::apply_end(const SearchRecord& record) {
  ended_ = true;
  const auto state = static_cast<SearchState>(record.number);
  if (state == SearchState::stopped) return;
  const std::set<TrialNumber> now = paused_;
  for (const TrialNumber number : now) {
    Trial& trial = trials_[static_cast<std::size_t>(number)];
    settle(trial, {tune::Outcome::State::stopped, trial.value.value_or(kNotANumber), trial.time});
    end(trial, State::stopped,
        halt_ == Halt::none ? "it stays behind: " + trial.reason : halt_reason_);
    sort(trial);
  }
}

void Search::settle(Trial& trial, const tune::Outcome& outcome) {
  scheduler_->ended(trial.number);
  sampler_->ended(trial.number, outcome);
}

void Search::end(Trial& trial, State state, const std::string& reason) {
  trial.state = state;
  trial.goes_on = false;
  trial.interrupted = false;
  trial.reason = reason;
  trial.marks.clear();
  trial.from.reset();
  if (std::exchange(trial.next_params, std::nullopt)) scheduler_->not_exploited(trial.number);
  if (state == State::failed) ++failed_;
}

void Search::set_halt(Halt why, const std::string& reason) {
  // A search that fails does not become one that was stopped; and what ends it for good stays.
  if (halt_ != Halt::none) return;
  halt_ = why;
  halt_reason_ = reason;
  const std::set<TrialNumber> now = alive_;
  for (const TrialNumber number : now) {
    Trial& trial = trials_[static_cast<std::size_t>(number)];
    if (trial.goes_on) {
      // The scheduler counts it as running.
      trial.goes_on = false;
      if (!trial.leg_lives) trial.state = State::paused;
      trial.interrupted = true;
    }
    sort(trial);
  }
}

void Search::sort(const Trial& trial) {
  const auto put = [&](std::set<TrialNumber>& into, bool belongs) {
    belongs ? void(into.insert(trial.number)) : void(into.erase(trial.number));
  };
  put(to_stop_, trial.leg_lives && (trial.fate != Fate::none || halt_ != Halt::none));
  put(to_go_on_, trial.goes_on && !trial.leg_lives);
  put(alive_, trial.leg_lives || trial.goes_on);
  put(paused_, trial.state == State::paused);
  put(pinning_, trial.from.has_value());
}

// ---- What is to be done.

bool Search::more() const noexcept {
  return halt_ == Halt::none && !ended_ && trials_.size() < total_;
}

std::optional<Search::Ending> Search::ending() const {
  if (ended_ || !alive_.empty() || more()) return std::nullopt;
  switch (halt_) {
    case Halt::person:
      return Ending{SearchState::stopped, halt_reason_};
    case Halt::time_budget:
      return Ending{SearchState::succeeded, halt_reason_};
    case Halt::failures:
      return Ending{SearchState::failed, halt_reason_};
    case Halt::none:
      break;
  }
  if (failed_ == 0 || static_cast<std::size_t>(failed_) < trials_.size()) {
    return Ending{SearchState::succeeded, ""};
  }
  return Ending{SearchState::failed,
                failed_ == 1 ? "its one trial failed: " + trials_.front().reason
                             : "all of its " + std::to_string(failed_) + " trials failed"};
}

// ---- What it stands at.

std::set<int> Search::pinned(const JobId& job) const {
  std::set<int> numbers;
  for (const TrialNumber number : pinning_) {
    const auto& from = trials_[static_cast<std::size_t>(number)].from;
    if (from->job == job) numbers.insert(from->number);
  }
  return numbers;
}

const Trial* Search::best() const noexcept {
  const Trial* best = nullptr;
  for (const Trial& trial : trials_) {
    if (trial.state == State::failed || !trial.value || !std::isfinite(*trial.value)) continue;
    if (best == nullptr || is_better(*trial.value, *best->value)) best = &trial;
  }
  return best;
}

nlohmann::json Search::exploitations() const {
  const auto* pbt = dynamic_cast<const tune::Pbt*>(scheduler_.get());
  if (pbt == nullptr) return nullptr;
  nlohmann::json list = nlohmann::json::array();
  for (const tune::Exploitation& each : pbt->record()) {
    if (!each.is_void) list.push_back(tune::to_json(each));
  }
  return list;
}

nlohmann::json Search::schedule_of(TrialNumber trial) const {
  const auto* pbt = dynamic_cast<const tune::Pbt*>(scheduler_.get());
  if (pbt == nullptr || find(trial) == nullptr) return nullptr;
  nlohmann::json list = nlohmann::json::array();
  for (const tune::ScheduleStep& step : pbt->schedule_of(trial)) {
    nlohmann::json each = nlohmann::json::object();
    each["time"] = step.time;
    each["params"] = nlohmann::json(step.params);
    list.push_back(std::move(each));
  }
  return list;
}

std::optional<tune::Outcome> Search::outcome_of(const Trial& trial) {
  if (!trial.value || !std::isfinite(*trial.value)) return std::nullopt;
  if (trial.state == State::complete) {
    return tune::Outcome{tune::Outcome::State::complete, *trial.value, trial.time};
  }
  if (trial.state == State::stopped) {
    return tune::Outcome{tune::Outcome::State::stopped, *trial.value, trial.time};
  }
  return std::nullopt;
}

}  // namespace dtrain::head
