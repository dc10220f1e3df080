#include "launcher/tune/pbt.hpp"

#include <algorithm>
#include <cmath>

#include "launcher/core/text.hpp"
#include "launcher/tune/keys.hpp"

namespace dtrain::tune {
namespace {

constexpr const char* kOthersWait = "; others wait for their turn";

// Another value for a list, and what was done.
std::pair<nlohmann::json, std::string> explored_choice(const PbtSpec& spec, const Domain& domain,
                                                       const nlohmann::json& value,
                                                       Stream& chance) {
  const std::optional<double> position = domain.position(value);
  if (chance.uniform() < spec.resample_probability || !position) {
    return {domain.values[static_cast<std::size_t>(chance.below(domain.values.size()))],
            "resampled"};
  }
  const bool left = chance.below(2) == 0;
  const auto at = static_cast<std::size_t>(*position);
  const std::size_t to = left ? (at == 0 ? 0 : at - 1) : std::min(at + 1, domain.values.size() - 1);
  return {domain.values[to], left ? "shifted left" : "shifted right"};
}

std::pair<nlohmann::json, std::string> explored_number(const PbtSpec& spec, const Domain& domain,
                                                       const nlohmann::json& value,
                                                       Stream& chance) {
  if (chance.uniform() < spec.resample_probability || !value.is_number()) {
    return {domain.at(chance.uniform()), "resampled"};
  }
  const double factor = spec.perturbation_factors[static_cast<std::size_t>(
      chance.below(spec.perturbation_factors.size()))];
  return {domain.nearest_to(value.get<double>() * factor), "* " + number_text(factor)};
}

}  // namespace

std::size_t pbt_quantile(std::size_t n, double fraction) {
  if (n <= 1) return 0;
  const auto count = static_cast<std::size_t>(std::ceil(static_cast<double>(n) * fraction));
  return std::min(count, n / 2);
}

Explored pbt_explore(const PbtSpec& spec, const SearchSpace& space, const Params& donor,
                     std::uint64_t seed, TrialNumber trial, int perturbation) {
  Explored explored;
  Params given;
  for (const auto& [name, value] : donor) {
    const Parameter* parameter = space.find(name);
    if (!parameter || parameter->domain.kind == Domain::Kind::sample_from) continue;
    given[name] = value;
    const auto mutation = spec.mutations.find(name);
    if (mutation == spec.mutations.end()) continue;
    Stream chance(seed, trial, "pbt " + std::to_string(perturbation) + " " + name);
    const auto [changed, what] = mutation->second.listed()
                                     ? explored_choice(spec, mutation->second, value, chance)
                                     : explored_number(spec, mutation->second, value, chance);
    given[name] = changed;
    explored.changes.push_back(name + ": " + shown(value) + " " + what + " = " + shown(changed));
  }
  explored.params = space.fill(given, seed, trial, [&](const Parameter& parameter, const Params&) {
    // It was not there at the donor's.
    Stream chance(seed, trial, "pbt " + std::to_string(perturbation) + " " + parameter.name);
    return parameter.domain.at(chance.uniform());
  });
  return explored;
}

nlohmann::json to_json(const Exploitation& each) {
  nlohmann::json object = nlohmann::json::object();
  object["trial"] = each.trial;
  object["time"] = each.time;
  object["value"] = each.value;
  object["donor"] = each.donor;
  object["donor_time"] = each.donor_time;
  object["donor_value"] = each.donor_value;
  object["params"] = nlohmann::json(each.params);
  return object;
}

Pbt::Pbt(const PbtSpec& spec, const SearchSpace& space, Mode mode, std::uint64_t seed,
         std::uint64_t trials)
    : Scheduler(mode), spec_(spec), space_(space), seed_(seed), trials_(trials) {}

void Pbt::on_added(TrialNumber trial, const Params& params) {
  Member member;
  member.params = params;
  member.first_params = params;
  member.founder = trial;
  if (members_.emplace(trial, std::move(member)).second) ++added_;
}

void Pbt::on_checkpoint(TrialNumber trial, double time) {
  members_.at(trial).checkpoint = time;
}

void Pbt::on_ended(TrialNumber trial) {
  Member& member = members_.at(trial);
  paused_.erase({member.trained, trial});
  if (!member.place) return;
  const auto found = std::lower_bound(ranking_.begin(), ranking_.end(), *member.place);
  if (found != ranking_.end() && *found == *member.place) ranking_.erase(found);
  member.place.reset();
}

void Pbt::pause(TrialNumber trial) {
  Member& member = members_.at(trial);
  paused_.emplace(member.trained, trial);
}

std::optional<Resumption> Pbt::resume() {
  if (added_ < trials_ || paused_.empty()) return std::nullopt;
  const auto [time, trial] = *paused_.begin();
  paused_.erase(paused_.begin());
  return Resumption{trial, "of those that wait it is least far, at " + number_text(time)};
}

Decision Pbt::decide(const Measured& report) {
  Member& member = members_.at(report.trial);
  if (report.time < spec_.burn_in_period) {
    return {Action::go_on, "it burns in up to " + number_text(spec_.burn_in_period), {}};
  }
  if (report.time - member.perturbed < spec_.perturbation_interval) {
    return {Action::go_on,
            "it is next compared at " + number_text(member.perturbed + spec_.perturbation_interval),
            {}};
  }
  member.perturbed = report.time;
  member.trained = report.time;
  member.value = report.value;
  if (member.place) {
    ranking_.erase(std::lower_bound(ranking_.begin(), ranking_.end(), *member.place));
  }
  member.place = Place(score(mode_, report.value), report.trial);
  const auto at = std::lower_bound(ranking_.begin(), ranking_.end(), *member.place);
  const auto rank = static_cast<std::size_t>(at - ranking_.begin());
  ranking_.insert(at, *member.place);

  const std::size_t n = ranking_.size();
  const std::size_t quantile = pbt_quantile(n, spec_.quantile_fraction);
  const std::string stands = "it is " + std::to_string(n - rank) + ". of " + std::to_string(n);
  if (rank < quantile) {
    std::vector<TrialNumber> donors;
    for (std::size_t i = n - quantile; i < n; ++i) {
      if (members_.at(ranking_[i].second).checkpoint && std::isfinite(ranking_[i].first)) {
        donors.push_back(ranking_[i].second);
      }
    }
    if (!donors.empty()) {
      Decision decision = exploit(report.trial, report, donors);
      decision.reason = stands + ", " + decision.reason;
      return decision;
    }
  }
  const std::string reason =
      stands + (rank >= quantile ? ""
                : quantile > 0   ? ", and none of the best has a checkpoint yet"
                                 : "");
  if (!others_wait()) return {Action::go_on, reason, {}};
  pause(report.trial);
  return {Action::pause, reason + kOthersWait, {}};
}

Decision Pbt::exploit(TrialNumber trial, const Measured& report,
                      const std::vector<TrialNumber>& donors) {
  Member& member = members_.at(trial);
  Stream chance(seed_, trial, "pbt donor " + std::to_string(member.perturbations));
  const TrialNumber donor = donors[static_cast<std::size_t>(chance.below(donors.size()))];
  const Member& from = members_.at(donor);
  Explored explored = pbt_explore(spec_, space_, from.params, seed_, trial, member.perturbations);

  Exploitation kept{trial,      report.time,     report.value, donor, *from.checkpoint,
                    from.value, explored.params, from.latest,  false};
  record_.push_back(std::move(kept));
  member.previous = member.latest;
  member.previous_founder = member.founder;
  member.latest = record_.size() - 1;
  member.founder = from.founder;
  member.params = explored.params;
  member.perturbed = from.perturbed;
  member.trained = *from.checkpoint;
  member.checkpoint.reset();  // its own are of another line
  ++member.perturbations;
  const bool waits = others_wait();
  if (waits) pause(trial);
  return {Action::exploit,
          "and goes on from trial " + std::to_string(donor) + ", whose last value is " +
              number_text(from.value) + (waits ? kOthersWait : ""),
          Exploit{donor, *from.checkpoint, std::move(explored.params), std::move(explored.changes),
                  waits}};
}

// Nobody went on from it since: it had no checkpoint.
void Pbt::not_exploited(TrialNumber trial) {
  Member& member = members_.at(trial);
  record_[member.latest.value()].is_void = true;
  ++void_;
  member.latest = member.previous;
  member.founder = member.previous_founder;
}

std::vector<ScheduleStep> Pbt::schedule_of(TrialNumber trial) const {
  const Member& member = members_.at(trial);
  std::vector<ScheduleStep> steps;
  for (auto at = member.latest; at; at = record_[*at].before) {
    steps.push_back({record_[*at].donor_time, record_[*at].params});
  }
  steps.push_back({0, members_.at(member.founder).first_params});
  std::reverse(steps.begin(), steps.end());
  return steps;
}

nlohmann::json Pbt::state() const {
  nlohmann::json state = nlohmann::json::object();
  state["population"] = ranking_.size();
  state["paused"] = paused_.size();
  state["exploits"] = record_.size() - void_;
  return state;
}

Decision PbtReplay::decide(const Measured& report) {
  if (next_ >= schedule_.size()) return {Action::go_on, "the schedule is at its end", {}};
  const ScheduleStep& step = schedule_[next_];
  if (report.time < step.time) {
    return {Action::go_on, "its parameters change at " + number_text(step.time), {}};
  }
  // One from before would have it trained anew from there, and not with what held until now.
  if (!checkpoint_ || *checkpoint_ < step.time) {
    return {Action::go_on,
            "its parameters change with its first checkpoint at " + number_text(step.time) +
                " or later",
            {}};
  }
  ++next_;
  return {Action::exploit, "step " + std::to_string(next_ - 1) + " of the schedule",
          Exploit{report.trial, *checkpoint_, step.params, {}, false}};
}

}  // namespace dtrain::tune
