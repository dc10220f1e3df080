#include "launcher/tune/scheduler.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "launcher/core/text.hpp"
#include "launcher/tune/asha.hpp"
#include "launcher/tune/keys.hpp"
#include "launcher/tune/median.hpp"
#include "launcher/tune/numeric.hpp"
#include "launcher/tune/pbt.hpp"

namespace dtrain::tune {
namespace {

using SchedulerAlgorithm = SchedulerSpec::Algorithm;

constexpr std::array kFormNames = {"stop", "promote"};
constexpr double kMostTime = SchedulerSpec::kLongest;

class Fifo : public Scheduler {
 public:
  explicit Fifo(Mode mode) : Scheduler(mode) {}

 protected:
  Decision decide(const Measured&) override { return {}; }
};

void read_asha(Keys& keys, AshaSpec& spec) {
  keys.number("max_t", spec.max_t, 0, kMostTime, true);
  keys.number("grace_period", spec.grace_period, 0, kMostTime, true);
  keys.number("reduction_factor", spec.reduction_factor, 1, 1e6, true);
  keys.whole("brackets", spec.brackets, 1, SchedulerSpec::kMostBrackets);
  keys.flag("stop_last_trials", spec.stop_last_trials);
  keys.one_of("form", spec.form, kFormNames);
  if (spec.grace_period > spec.max_t) {
    keys.wrong("grace_period",
               number_text(spec.grace_period) + " is beyond max_t, " + number_text(spec.max_t));
  }
  const double rungs =
      natural_log(spec.max_t / spec.grace_period) / natural_log(spec.reduction_factor);
  if (!(rungs <= SchedulerSpec::kMostRungs)) {
    keys.wrong("reduction_factor",
               "makes more than " + std::to_string(SchedulerSpec::kMostRungs) + " rungs");
  }
  if (spec.form == AshaSpec::Form::promote && !spec.stop_last_trials) {
    keys.wrong("stop_last_trials", "can be false for form: stop alone");
  }
}

// A mutation as a parameter of a space; a list stands for a choice.
Domain mutation_from_json(const nlohmann::json& json, const Path& path, Problems& problems) {
  if (json.is_array()) return domain_from_json(Domain::Kind::choice, json, path, problems);
  if (json.is_string()) {
    return domain_from_line(json.get_ref<const std::string&>(), path, problems);
  }
  if (json.is_object() && json.size() == 1) {
    if (const auto kind = domain_kind(json.begin().key())) {
      return domain_from_json(*kind, json.front(), with(path, json.begin().key()), problems);
    }
  }
  problems.add(path, "must be a list or a domain, not " + shown(json));
  return {};
}

void read_mutations(const nlohmann::json* json, const SearchSpace& space, const Path& path,
                    Problems& problems, PbtSpec& spec) {
  if (!json || json->is_null()) {
    for (const Parameter& each : space.parameters()) {
      if (each.domain.sampled()) spec.mutations.emplace(each.name, each.domain);
    }
    if (spec.mutations.empty()) problems.add(path, "nothing of the space can mutate");
    return;
  }
  spec.mutations_given = true;
  if (!json->is_object() || json->empty()) {
    problems.add(path, "must be parameters and their domains, not " + shown(*json));
    return;
  }
  for (const auto& [name, value] : json->items()) {
    const Path at = with(path, name);
    const Parameter* parameter = space.find(name);
    if (!parameter) {
      problems.add(at, "is no parameter of the space", "nested ones are named with a dot");
      continue;
    }
    Domain domain = mutation_from_json(value, at, problems);
    if (!domain.sampled()) {
      problems.add(at, "must be a list or a domain that is sampled, not " + shown(value));
    } else if (parameter->domain.kind == Domain::Kind::sample_from) {
      problems.add(at, "is computed of others, which can mutate in its place");
    } else {
      spec.mutations.emplace(name, std::move(domain));
    }
  }
}

void read_pbt(Keys& keys, const SearchSpace& space, PbtSpec& spec) {
  keys.number("perturbation_interval", spec.perturbation_interval, 0, kMostTime, true);
  keys.number("burn_in_period", spec.burn_in_period, 0, kMostTime);
  keys.number("quantile_fraction", spec.quantile_fraction, 0, 0.5);
  keys.number("resample_probability", spec.resample_probability, 0, 1);
  if (const nlohmann::json* factors = keys.find("perturbation_factors")) {
    spec.perturbation_factors.clear();
    for (const nlohmann::json& factor : *factors) {
      const double value = factor.is_number() ? factor.get<double>() : -1;
      if (value > 0 && value <= 1e6) spec.perturbation_factors.push_back(value);
    }
    if (!factors->is_array() || factors->empty() || factors->size() > 100 ||
        spec.perturbation_factors.size() != factors->size()) {
      keys.wrong("perturbation_factors",
                 "must be a list of numbers above 0, not " + shown(*factors));
      spec.perturbation_factors = {1};
    }
  }
  const nlohmann::json* mutations = keys.find("hyperparam_mutations");
  read_mutations(mutations, space, keys.path("hyperparam_mutations"), keys.problems(), spec);
}

void read_schedule(Keys& keys, const SearchSpace& space, std::vector<ScheduleStep>& schedule) {
  const nlohmann::json* steps = keys.find("schedule");
  if (!steps || !steps->is_array() || steps->empty() || steps->size() > SchedulerSpec::kMostSteps) {
    keys.wrong("schedule", "must be a list of {time, params}, as a search by pbt keeps it");
    return;
  }
  double last = -1;
  for (std::size_t i = 0; i < steps->size(); ++i) {
    const Path at = with(keys.path("schedule"), "[" + std::to_string(i) + "]");
    Keys step((*steps)[i], at, keys.problems());
    ScheduleStep read;
    step.number("time", read.time, 0, kMostTime);
    if (read.time < last) step.wrong("time", "is before that of the step before it");
    last = read.time;
    if (const nlohmann::json* params = step.find("params"); params && params->is_object()) {
      for (const auto& [name, value] : params->items()) {
        if (!space.find(name))
          step.wrong("params", "there is no parameter \"" + printable(name.substr(0, 60), false) +
                                   "\" in the space");
        read.params[name] = value;
      }
    } else {
      step.wrong("params", "must be an object of parameters");
    }
    step.finish();
    schedule.push_back(std::move(read));
  }
}

}  // namespace

const char* to_string(SchedulerAlgorithm algorithm) noexcept {
  return SchedulerSpec::kNames[static_cast<std::size_t>(algorithm)];
}

const char* to_string(Action action) noexcept {
  constexpr std::array kNames = {"go_on", "stop", "pause", "exploit"};
  return kNames[static_cast<std::size_t>(action)];
}

SchedulerSpec scheduler_spec_from_json(const nlohmann::json& json, const SearchSpace& space,
                                       const Path& path, Problems& problems) {
  SchedulerSpec spec;
  const nlohmann::json object = spelled_out(json);
  Keys keys(object, path, problems);
  keys.one_of("algorithm", spec.algorithm, SchedulerSpec::kNames);
  keys.text("time_attr", spec.time_attr);
  switch (spec.algorithm) {
    case SchedulerAlgorithm::fifo:
      break;
    case SchedulerAlgorithm::asha:
      read_asha(keys, spec.asha);
      break;
    case SchedulerAlgorithm::median_stopping:
      keys.number("grace_period", spec.median.grace_period, 0, kMostTime);
      keys.whole("min_samples_required", spec.median.min_samples_required, 1, 1'000'000);
      break;
    case SchedulerAlgorithm::pbt:
      read_pbt(keys, space, spec.pbt);
      break;
    case SchedulerAlgorithm::pbt_replay:
      read_schedule(keys, space, spec.schedule);
      break;
  }
  keys.finish();
  return spec;
}

nlohmann::json to_json(const SchedulerSpec& spec) {
  nlohmann::json object = nlohmann::json::object();
  object["algorithm"] = to_string(spec.algorithm);
  object["time_attr"] = spec.time_attr;
  switch (spec.algorithm) {
    case SchedulerAlgorithm::fifo:
      break;
    case SchedulerAlgorithm::asha:
      object["max_t"] = spec.asha.max_t;
      object["grace_period"] = spec.asha.grace_period;
      object["reduction_factor"] = spec.asha.reduction_factor;
      object["brackets"] = spec.asha.brackets;
      object["stop_last_trials"] = spec.asha.stop_last_trials;
      object["form"] = kFormNames[static_cast<std::size_t>(spec.asha.form)];
      break;
    case SchedulerAlgorithm::median_stopping:
      object["grace_period"] = spec.median.grace_period;
      object["min_samples_required"] = spec.median.min_samples_required;
      break;
    case SchedulerAlgorithm::pbt:
      object["perturbation_interval"] = spec.pbt.perturbation_interval;
      object["burn_in_period"] = spec.pbt.burn_in_period;
      object["quantile_fraction"] = spec.pbt.quantile_fraction;
      object["resample_probability"] = spec.pbt.resample_probability;
      object["perturbation_factors"] = spec.pbt.perturbation_factors;
      for (const auto& [name, domain] : spec.pbt.mutations) {
        object["hyperparam_mutations"][name] = to_json(domain);
      }
      break;
    case SchedulerAlgorithm::pbt_replay:
      for (const ScheduleStep& step : spec.schedule) {
        nlohmann::json each = nlohmann::json::object();
        each["time"] = step.time;
        each["params"] = nlohmann::json(step.params);
        object["schedule"].push_back(std::move(each));
      }
      break;
  }
  return object;
}

void check_together(const SamplerSpec& sampler, const SchedulerSpec& scheduler,
                    std::uint64_t trials, const Path& path, Problems& problems) {
  if (scheduler.algorithm == SchedulerAlgorithm::pbt) {
    if (sampler.algorithm == SamplerSpec::Algorithm::tpe) {
      problems.add(path, "pbt changes parameters under way, of which tpe would learn wrong things",
                   "search: random or sobol begins with as many different ones");
    }
    if (trials < 2) problems.add(path, "pbt wants two trials at least");
  }
  if (scheduler.algorithm == SchedulerAlgorithm::pbt_replay && trials != 1) {
    problems.add(path, "pbt_replay runs one trial, not " + std::to_string(trials));
  }
}

void Scheduler::added(TrialNumber trial, const Params& params) {
  if (!last_time_.emplace(trial, -std::numeric_limits<double>::infinity()).second) return;
  on_added(trial, params);
}

Decision Scheduler::reported(const Measured& report) {
  const auto found = last_time_.find(report.trial);
  if (found == last_time_.end()) return {Action::go_on, "it is not a trial that runs", {}};
  if (!(report.time > found->second)) {
    return {Action::go_on, number_text(report.time) + " was reported before", {}};
  }
  found->second = report.time;
  Decision decision = decide(report);
  if (decision.exploit) found->second = decision.exploit->time;
  return decision;
}

void Scheduler::checkpointed(TrialNumber trial, double time) {
  if (last_time_.contains(trial)) on_checkpoint(trial, time);
}

void Scheduler::ended(TrialNumber trial) {
  if (last_time_.erase(trial) > 0) on_ended(trial);
}

std::unique_ptr<Scheduler> make_scheduler(const SchedulerSpec& spec, const SearchSpace& space,
                                          Mode mode, std::uint64_t seed, std::uint64_t trials) {
  switch (spec.algorithm) {
    case SchedulerAlgorithm::fifo:
      break;
    case SchedulerAlgorithm::asha:
      if (spec.asha.form == AshaSpec::Form::promote) {
        return std::make_unique<AshaPromoting>(spec.asha, mode, seed, trials);
      }
      return std::make_unique<AshaStopping>(spec.asha, mode, seed);
    case SchedulerAlgorithm::median_stopping:
      return std::make_unique<MedianStopping>(spec.median, mode);
    case SchedulerAlgorithm::pbt:
      return std::make_unique<Pbt>(spec.pbt, space, mode, seed, trials);
    case SchedulerAlgorithm::pbt_replay:
      return std::make_unique<PbtReplay>(spec.schedule, mode);
  }
  return std::make_unique<Fifo>(mode);
}

}  // namespace dtrain::tune
