#include "launcher/tune/asha.hpp"

#include <algorithm>
#include <cmath>

#include "launcher/core/text.hpp"
#include "launcher/tune/numeric.hpp"
#include "launcher/tune/random.hpp"

namespace dtrain::tune {

std::vector<double> asha_milestones(double grace_period, double max_t, double reduction_factor,
                                    int number) {
  std::vector<double> milestones;
  for (double at = grace_period; at <= max_t; at *= reduction_factor) milestones.push_back(at);
  const auto skipped = std::min<std::size_t>(static_cast<std::size_t>(number), milestones.size());
  milestones.erase(milestones.begin(), milestones.begin() + static_cast<long>(skipped));
  return milestones;
}

std::size_t asha_bracket(const std::vector<std::size_t>& rungs, std::uint64_t seed,
                         TrialNumber trial) {
  const auto most = static_cast<double>(*std::max_element(rungs.begin(), rungs.end()));
  std::vector<double> weights;
  double sum = 0;
  for (const std::size_t each : rungs) {
    weights.push_back(natural_exp(static_cast<double>(each) - most));
    sum += weights.back();
  }
  double u = Stream(seed, trial, "asha bracket").uniform() * sum;
  std::size_t bracket = 0;
  while (bracket + 1 < weights.size() && u >= weights[bracket]) u -= weights[bracket++];
  return bracket;
}

AshaBracket::AshaBracket(double grace_period, double max_t, double reduction_factor, int number,
                         bool stop_last_trials)
    : reduction_factor_(reduction_factor), stop_last_trials_(stop_last_trials) {
  for (const double milestone : asha_milestones(grace_period, max_t, reduction_factor, number)) {
    rungs_.push_back({milestone, {}, {}});
  }
}

// numpy.nanpercentile(scores, (1 - 1 / factor) * 100), to the last bit.
std::optional<double> AshaBracket::Rung::cutoff(double reduction_factor) const {
  if (scores.empty()) return std::nullopt;
  const double quantile = (1 - 1 / reduction_factor) * 100 / 100;
  const double place = static_cast<double>(scores.size() - 1) * quantile;
  const auto below = static_cast<std::size_t>(std::floor(place));
  if (below + 1 >= scores.size()) return scores.back();
  const double part = place - std::floor(place);
  const double gap = scores[below + 1] - scores[below];
  return part >= 0.5 ? scores[below + 1] - gap * (1 - part) : scores[below] + gap * part;
}

AshaBracket::Answer AshaBracket::report(TrialNumber trial, double time, double score) {
  for (auto rung = rungs_.rbegin(); rung != rungs_.rend(); ++rung) {
    if (time < rung->milestone) continue;
    if (rung->trials.contains(trial)) {
      if (!stop_last_trials_) break;  // it was decided that it goes on
      continue;
    }
    const std::optional<double> cutoff = rung->cutoff(reduction_factor_);
    rung->trials.insert(trial);
    if (!std::isfinite(score)) return {rung->milestone, cutoff, true};
    rung->scores.insert(std::upper_bound(rung->scores.begin(), rung->scores.end(), score), score);
    return {rung->milestone, cutoff, cutoff && score < *cutoff};
  }
  return {};
}

namespace {

// The metric as it was reported.
std::string value_text(Mode mode, double score) {
  return std::isfinite(score) ? number_text(mode == Mode::max ? score : -score) : "no number";
}

std::string share_text(double reduction_factor) {
  return "the best 1/" + number_text(reduction_factor);
}

}  // namespace

AshaStopping::AshaStopping(const AshaSpec& spec, Mode mode, std::uint64_t seed)
    : Scheduler(mode), spec_(spec), seed_(seed) {
  for (int number = 0; number < spec.brackets; ++number) {
    brackets_.emplace_back(spec.grace_period, spec.max_t, spec.reduction_factor, number,
                           spec.stop_last_trials);
  }
}

void AshaStopping::on_added(TrialNumber trial, const Params&) {
  std::vector<std::size_t> rungs;
  for (const AshaBracket& bracket : brackets_) rungs.push_back(bracket.rungs().size());
  bracket_of_[trial] = asha_bracket(rungs, seed_, trial);
}

Decision AshaStopping::decide(const Measured& report) {
  if (report.time >= spec_.max_t && spec_.stop_last_trials) {
    return {Action::stop, "it reached max_t, " + number_text(spec_.max_t), {}};
  }
  const double trial_score = score(mode_, report.value);
  const auto answer =
      brackets_[bracket_of_.at(report.trial)].report(report.trial, report.time, trial_score);
  if (!answer.milestone) return {Action::go_on, "it is between rungs", {}};
  const std::string rung = "rung " + number_text(*answer.milestone) + ": ";
  if (!std::isfinite(trial_score)) return {Action::stop, rung + "the metric is no number", {}};
  if (!answer.cutoff) return {Action::go_on, rung + "it is the first there", {}};
  return {answer.stop ? Action::stop : Action::go_on,
          rung + number_text(report.value) + (answer.stop ? " is not" : " is") + " among " +
              share_text(spec_.reduction_factor) + ", which begins at " +
              value_text(mode_, *answer.cutoff),
          {}};
}

nlohmann::json AshaStopping::state() const {
  nlohmann::json brackets = nlohmann::json::array();
  for (const AshaBracket& bracket : brackets_) {
    nlohmann::json rungs = nlohmann::json::array();
    for (const AshaBracket::Rung& rung : bracket.rungs()) {
      nlohmann::json each = nlohmann::json::object();
      each["milestone"] = rung.milestone;
      each["trials"] = rung.trials.size();
      const std::optional<double> cutoff = rung.cutoff(spec_.reduction_factor);
      each["cutoff"] = cutoff ? nlohmann::json(mode_ == Mode::max ? *cutoff : -*cutoff)
                              : nlohmann::json(nullptr);
      rungs.push_back(std::move(each));
    }
    brackets.push_back(std::move(rungs));
  }
  nlohmann::json state = nlohmann::json::object();
  state["brackets"] = std::move(brackets);
  return state;
}

AshaPromoting::AshaPromoting(const AshaSpec& spec, Mode mode, std::uint64_t seed,
                             std::uint64_t trials)
    : Scheduler(mode), spec_(spec), seed_(seed), trials_(trials) {
  for (int number = 0; number < spec.brackets; ++number) {
    auto& rungs = brackets_.emplace_back();
    for (const double milestone :
         asha_milestones(spec.grace_period, spec.max_t, spec.reduction_factor, number)) {
      if (milestone < spec.max_t) rungs.push_back({milestone, {}, {}});
    }
    rungs.push_back({spec.max_t, {}, {}});
  }
}

void AshaPromoting::on_added(TrialNumber trial, const Params&) {
  std::vector<std::size_t> rungs;
  for (const auto& bracket : brackets_) rungs.push_back(bracket.size());
  standing_[trial] = {asha_bracket(rungs, seed_, trial), 0, std::nullopt};
  ++added_;
  ++running_;
}

std::optional<AshaPromoting::Place> AshaPromoting::promotable(const Rung& rung) const {
  if (rung.open.empty()) return std::nullopt;
  const Place best = *rung.open.begin();
  const auto rank = std::lower_bound(rung.all.begin(), rung.all.end(), best) - rung.all.begin();
  const double top = std::floor(static_cast<double>(rung.all.size()) / spec_.reduction_factor);
  return static_cast<double>(rank) < top && std::isfinite(best.first) ? std::optional(best)
                                                                      : std::nullopt;
}

void AshaPromoting::promote(Rung& rung, const Place& place) {
  rung.open.erase(place);
  Standing& standing = standing_.at(place.second);
  standing.open.reset();
  ++standing.rung;
}

Decision AshaPromoting::decide(const Measured& report) {
  Standing& standing = standing_.at(report.trial);
  auto& rungs = brackets_[standing.bracket];
  Rung& rung = rungs[standing.rung];
  if (report.time < rung.milestone || standing.open) {
    return {Action::go_on, "it runs to rung " + number_text(rung.milestone), {}};
  }
  const Place place(-score(mode_, report.value), report.trial);
  rung.all.insert(std::upper_bound(rung.all.begin(), rung.all.end(), place), place);
  if (standing.rung + 1 == rungs.size()) {
    return {Action::stop, "it reached max_t, " + number_text(spec_.max_t), {}};
  }
  rung.open.insert(place);
  standing.open = place;
  const std::string at =
      "rung " + number_text(rung.milestone) + ": " + value_text(mode_, -place.first);
  // A trial of a higher rung would go first, but that one is paused: resume() names it.
  if (promotable(rung) == place) {
    promote(rung, place);
    return {Action::go_on, at + " is among " + share_text(spec_.reduction_factor), {}};
  }
  --running_;
  return {Action::pause, at + " is not yet among " + share_text(spec_.reduction_factor), {}};
}

std::optional<Resumption> AshaPromoting::resume() {
  for (auto& rungs : brackets_) {
    for (std::size_t i = rungs.size() - 1; i-- > 0;) {
      if (const auto place = promotable(rungs[i])) {
        return resumed(rungs[i], *place, " is among " + share_text(spec_.reduction_factor));
      }
    }
  }
  return added_ >= trials_ && running_ == 0 ? resume_last() : std::nullopt;
}

Resumption AshaPromoting::resumed(Rung& rung, const Place& place, const std::string& why) {
  promote(rung, place);
  ++running_;
  return {place.second,
          "rung " + number_text(rung.milestone) + ": " + value_text(mode_, -place.first) + why};
}

std::optional<Resumption> AshaPromoting::resume_last() {
  Rung* highest = nullptr;
  for (auto& rungs : brackets_) {
    if (!rungs.back().all.empty()) return std::nullopt;  // one has reached max_t
    for (Rung& rung : rungs) {
      const bool some = !rung.open.empty() && std::isfinite(rung.open.begin()->first);
      if (some && (!highest || rung.milestone > highest->milestone)) highest = &rung;
    }
  }
  if (!highest) return std::nullopt;
  const Place best = *highest->open.begin();
  return resumed(*highest, best, " is the best of the highest rung, and no more trials come");
}

void AshaPromoting::on_ended(TrialNumber trial) {
  const auto found = standing_.find(trial);
  if (found == standing_.end()) return;
  const Standing& standing = found->second;
  if (standing.open) {
    brackets_[standing.bracket][standing.rung].open.erase(*standing.open);
  } else {
    --running_;
  }
  standing_.erase(found);
}

nlohmann::json AshaPromoting::state() const {
  nlohmann::json brackets = nlohmann::json::array();
  for (const auto& bracket : brackets_) {
    nlohmann::json rungs = nlohmann::json::array();
    for (const Rung& rung : bracket) {
      nlohmann::json each = nlohmann::json::object();
      each["milestone"] = rung.milestone;
      each["trials"] = rung.all.size();
      each["paused"] = rung.open.size();
      rungs.push_back(std::move(each));
    }
    brackets.push_back(std::move(rungs));
  }
  nlohmann::json state = nlohmann::json::object();
  state["brackets"] = std::move(brackets);
  return state;
}

}  // namespace dtrain::tune
