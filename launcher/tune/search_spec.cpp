#include "launcher/tune/search_spec.hpp"

#include <algorithm>

#include "launcher/core/text.hpp"
#include "launcher/spec/checks.hpp"
#include "launcher/spec/limits.hpp"
#include "launcher/tune/keys.hpp"
#include "launcher/tune/trial_job.hpp"

namespace dtrain::tune {
namespace {

void read_fail_fast(Keys& keys, FailFast& to) {
  const nlohmann::json* value = keys.find("fail_fast");
  if (!value || value->is_null()) return;
  if (value->is_boolean()) {
    to = {value->get<bool>(), 0};
  } else if (value->is_number_integer() && *value >= 1 && *value <= SearchSpec::kMostTrials) {
    to = {false, value->get<int>()};
  } else {
    keys.wrong("fail_fast", "must be true, false or a number of trials, not " + shown(*value));
  }
}

nlohmann::json fail_fast_json(const FailFast& fail_fast) {
  if (fail_fast.first) return true;
  return fail_fast.without_success == 0 ? nlohmann::json(false)
                                        : nlohmann::json(fail_fast.without_success);
}

void read_warm_start(Keys& keys, std::vector<std::string>& to) {
  const nlohmann::json* value = keys.find("warm_start");
  if (!value || value->is_null()) return;
  const nlohmann::json list = value->is_string() ? nlohmann::json::array({*value}) : *value;
  if (!list.is_array() || list.size() > SearchSpec::kMostWarmStarts) {
    keys.wrong("warm_start", "must be a list of up to " +
                                 std::to_string(SearchSpec::kMostWarmStarts) + " searches, not " +
                                 shown(*value));
    return;
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string id = list[i].is_string() ? list[i].get<std::string>() : "";
    if (valid_name(id)) {
      to.push_back(id);
    } else {
      keys.problems().add(with(keys.path("warm_start"), "[" + std::to_string(i) + "]"),
                          shown(list[i]) + " is no id of a search");
    }
  }
}

// All of the search's own keys; `keys` is of the object that has them.
void read_keys(Keys& keys, SearchSpec& spec) {
  Problems& problems = keys.problems();
  const auto value = [&](const char* key) {
    const nlohmann::json* found = keys.find(key);
    return found ? *found : nlohmann::json();
  };
  keys.text("name", spec.name);
  if (const nlohmann::json* space = keys.find("space")) {
    const std::size_t before = problems.list().size();
    spec.space = SearchSpace::from_json(*space, keys.path("space"), problems);
    // What hangs on a space that is wrong would be wrong for no reason of its own.
    if (problems.list().size() > before) spec.space = {};
  } else {
    problems.add(keys.path("space"), "is missing: which parameters there are",
                 "for example: space: {lr: {loguniform: [1e-4, 1e-1]}}");
  }
  spec.objective = objective_from_json(value("metric"), value("mode"), {}, problems);
  spec.search = sampler_spec_from_json(value("search"), spec.space, keys.path("search"), problems);
  spec.scheduler =
      scheduler_spec_from_json(value("scheduler"), spec.space, keys.path("scheduler"), problems);
  keys.whole("num_samples", spec.num_samples, 1, SearchSpec::kMostTrials);
  keys.whole("max_concurrent", spec.max_concurrent, 1, SearchSpec::kMostConcurrent);
  std::optional<std::int64_t> budget;
  keys.whole("time_budget_s", budget, 1, limits::kTimeoutSeconds);
  if (budget) spec.time_budget = std::chrono::seconds(*budget);
  spec.stop = stop_from_json(value("stop"), keys.path("stop"), problems);
  read_fail_fast(keys, spec.fail_fast);
  read_warm_start(keys, spec.warm_start);
}

}  // namespace

void validate(const SearchSpec& spec, Problems& problems) {
  std::vector<Problem> of_job = spec::problems_of(spec.job);
  spec::Checks own;
  if (spec.name != spec.job.name) own.name({"name"}, spec.name, "name: mnist");
  for (Problem& problem : own.take()) of_job.push_back(std::move(problem));
  for (const Problem& problem : of_job) {
    problems.add(problem.path, problem.message, problem.hint);
  }
  if (!spec.job.after.empty()) problems.add({"after"}, "a search comes after no job");
  if (!spec.job.resumes.empty()) {
    problems.add({"resumes"}, "a trial cannot go on with another job");
  }
  if (spec.space.parameters().empty()) {
    const auto& known = problems.list();
    const bool is_wrong = std::any_of(known.begin(), known.end(), [](const Problem& each) {
      return !each.path.empty() && each.path.front() == "space";
    });
    if (!is_wrong) {
      problems.add({"space"}, "has no parameter",
                   "for example: space: {lr: {loguniform: [1e-4, 1e-1]}}");
    }
    return;
  }
  check_placeholders(spec.job, spec.space, problems);
  const std::uint64_t trials = spec.trials();
  if (trials > SearchSpec::kMostTrials) {
    problems.add({"num_samples"}, "makes " + std::to_string(trials) + " trials; at most " +
                                      std::to_string(SearchSpec::kMostTrials) + " are possible");
  }
  check_together(spec.search, spec.scheduler, trials, {"scheduler"}, problems);
}

void read_search_keys(const nlohmann::json& json, SearchSpec& spec, Problems& problems) {
  Keys keys(json, {}, problems);
  read_keys(keys, spec);
}

nlohmann::json to_json(const SearchSpec& spec) {
  nlohmann::json object = nlohmann::json::object();
  object["name"] = spec.name;
  object["job"] = dtrain::to_json(spec.job);
  object["space"] = spec.space.to_json();
  object["search"] = to_json(spec.search);
  object["scheduler"] = to_json(spec.scheduler);
  object["metric"] = spec.objective.metric;
  object["mode"] = spec.objective.mode == Mode::max ? "max" : "min";
  object["num_samples"] = spec.num_samples;
  if (spec.max_concurrent) object["max_concurrent"] = *spec.max_concurrent;
  if (spec.time_budget) object["time_budget_s"] = spec.time_budget->count();
  if (!spec.stop.empty()) object["stop"] = to_json(spec.stop);
  object["fail_fast"] = fail_fast_json(spec.fail_fast);
  if (!spec.warm_start.empty()) object["warm_start"] = spec.warm_start;
  return object;
}

SearchSpec search_spec_from_json(const nlohmann::json& json, Problems& problems,
                                 UnknownKeys unknown) {
  SearchSpec spec;
  Keys keys(json, {}, problems);
  if (const nlohmann::json* job = keys.find("job")) {
    spec.job = job_spec_from_json(*job, unknown);
  } else {
    problems.add({"job"}, "is missing: what each trial runs");
  }
  spec.name = spec.job.name;
  read_keys(keys, spec);
  if (unknown == UnknownKeys::refuse) keys.finish();
  if (problems.empty()) validate(spec, problems);
  return spec;
}

}  // namespace dtrain::tune
