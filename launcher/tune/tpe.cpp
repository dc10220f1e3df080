#include "launcher/tune/tpe.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dtrain::tune {
namespace {

// How many of n trials are the good ones.
std::size_t good_ones(std::size_t n) {
  return std::min((n + 9) / 10, Tpe::kMostBelow);
}

}  // namespace

Tpe::Tpe(const SearchSpace& space, const SamplerSpec& spec, Mode mode)
    : Sampler(space, spec), mode_(mode) {
  for (const Parameter& parameter : space_.parameters()) {
    if (!parameter.domain.sampled()) continue;
    dimension_[parameter.name] = parameters_.size();
    groups_[parameter.group].dimensions.push_back(parameters_.size());
    parameters_.push_back(parameter);
  }
}

std::size_t Tpe::add(const Params& params) {
  Entry entry;
  for (const Parameter& parameter : parameters_) {
    const auto found = params.find(parameter.name);
    std::optional<double> position;
    if (found != params.end()) position = parameter.domain.position(found->second);
    entry.at.push_back(position ? kernel_place(parameter.domain, *position)
                                : std::numeric_limits<double>::quiet_NaN());
  }
  entries_.push_back(std::move(entry));
  return entries_.size() - 1;
}

void Tpe::rank(std::size_t entry, const Outcome& outcome) {
  if (entries_[entry].state != State::running) return;
  if (outcome.state == Outcome::State::failed ||
      (outcome.state == Outcome::State::complete && !std::isfinite(outcome.value))) {
    entries_[entry].state = State::failed;
    return;
  }
  entries_[entry].state = State::ended;
  const bool stopped = outcome.state == Outcome::State::stopped;
  ranked_.emplace(stopped, stopped ? -outcome.time : 0, -score(mode_, outcome.value), entry);
}

void Tpe::learn(const Params& params, const Outcome& outcome) {
  bool some = false;
  for (const Parameter& parameter : parameters_) {
    const auto found = params.find(parameter.name);
    if (found == params.end()) continue;
    if (!parameter.domain.position(found->second)) return;
    some = true;
  }
  if (some) rank(add(params), outcome);
}

void Tpe::started(TrialNumber trial, const Params& params) {
  entry_of_[trial] = add(params);
}

void Tpe::ended(TrialNumber trial, const Outcome& outcome) {
  const auto found = entry_of_.find(trial);
  if (found != entry_of_.end()) rank(found->second, outcome);
}

Params Tpe::sample(TrialNumber trial, std::uint64_t, const Params& fixed) const {
  if (ranked_.size() < static_cast<std::size_t>(spec_.n_startup_trials)) {
    return at_random(trial, fixed);
  }
  std::vector<std::size_t> below;
  for (const Rank& rank : ranked_) {
    if (below.size() == good_ones(ranked_.size())) break;
    below.push_back(std::get<3>(rank));
  }
  std::sort(below.begin(), below.end());
  std::vector<std::size_t> above;
  for (std::size_t i = entries_.size(); i-- > 0 && above.size() < kMostAbove;) {
    const State state = entries_[i].state;
    if (state == State::failed || (state == State::running && !spec_.constant_liar)) continue;
    if (!std::binary_search(below.begin(), below.end(), i)) above.push_back(i);
  }
  std::reverse(above.begin(), above.end());

  std::map<std::string, std::vector<double>> picked;  // by group, in the order of its dimensions
  return space_.fill(fixed, seed_, trial, [&](const Parameter& parameter, const Params&) {
    const Group& group = groups_.at(parameter.group);
    const auto [found, fresh] = picked.try_emplace(parameter.group);
    if (fresh) found->second = best(trial, group, below, above);
    const auto place =
        std::find(group.dimensions.begin(), group.dimensions.end(), dimension_.at(parameter.name)) -
        group.dimensions.begin();
    return kernel_value(parameter.domain, found->second[static_cast<std::size_t>(place)]);
  });
}

std::vector<std::vector<double>> Tpe::points(const std::vector<std::size_t>& entries,
                                             const Group& group) const {
  std::vector<std::vector<double>> list;
  for (const std::size_t each : entries) {
    std::vector<double> point;
    for (const std::size_t dimension : group.dimensions) {
      point.push_back(entries_[each].at[dimension]);
    }
    const bool whole = std::none_of(point.begin(), point.end(),
                                    [](double coordinate) { return std::isnan(coordinate); });
    if (whole) list.push_back(std::move(point));
  }
  return list;
}

std::vector<double> Tpe::best(TrialNumber trial, const Group& group,
                              const std::vector<std::size_t>& below,
                              const std::vector<std::size_t>& above) const {
  std::vector<const Domain*> domains;
  for (const std::size_t dimension : group.dimensions) {
    domains.push_back(&parameters_[dimension].domain);
  }
  const Parzen good(domains, points(below, group));
  const Parzen rest(domains, points(above, group));
  Stream chance(seed_, trial, "tpe of " + parameters_[group.dimensions.front()].name);
  std::vector<double> best_point;
  double best_gain = -std::numeric_limits<double>::infinity();
  for (int i = 0; i < spec_.n_ei_candidates; ++i) {
    std::vector<double> candidate = good.draw(chance);
    const double gain = good.log_density(candidate) - rest.log_density(candidate);
    if (best_point.empty() || gain > best_gain) {
      best_gain = gain;
      best_point = std::move(candidate);
    }
  }
  return best_point;
}

}  // namespace dtrain::tune
