#include "cli/tune_flags.hpp"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/yaml.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using nlohmann::json;

constexpr const char* kSearchGroup = "Search (each also a key of the search YAML)";

// A number, true, a list and so on where it reads as one, else the text.
json value_of_text(const std::string& text) {
  json value = json::parse(text, nullptr, false);
  return value.is_discarded() ? json(text) : value;
}

std::pair<std::string, json> assignment(const std::string& flag, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos) {
    throw Error(ErrorCode::usage, flag + ": \"" + printable(text, false) + "\" is no KEY=VALUE");
  }
  return {text.substr(0, equals), value_of_text(text.substr(equals + 1))};
}

// "asha", "asha:max_t=27:reduction_factor=3", or JSON.
json algorithm_of(const std::string& flag, const std::string& text) {
  if (text.starts_with('{')) return wire::parse_json(text, flag);
  std::vector<std::string> parts = split(text, ':');
  json object = json::object();
  object["algorithm"] = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const auto [key, value] = assignment(flag, parts[i]);
    object[key] = value;
  }
  return object;
}

// "lr=0.1,momentum=0.9", or JSON.
json point_of(const std::string& text) {
  if (text.starts_with('{')) return wire::parse_json(text, "--point");
  json point = json::object();
  for (const std::string& part : split(text, ',')) {
    const auto [name, value] = assignment("--point", part);
    point[name] = value;
  }
  return point;
}

// "loss<=0.1" as {"loss": "<= 0.1"}, "training_iteration=100" as a plain number.
std::pair<std::string, json> stop_of(const std::string& text) {
  const std::size_t at = text.find_first_of("<>=");
  if (at == 0 || at == std::string::npos) {
    throw Error(ErrorCode::usage, "--stop: \"" + printable(text, false) +
                                      "\" is no bound as loss<=0.1 or training_iteration=100");
  }
  const std::string bound = text.substr(at);
  if (bound.front() == '=') return {text.substr(0, at), value_of_text(bound.substr(1))};
  return {text.substr(0, at), bound};
}

// Another algorithm keeps what every one has.
void set_algorithm(json& own, const char* key, const std::string& flag,
                   const std::optional<std::string>& text) {
  if (!text) return;
  const json before = own.value(key, json());
  own[key] = algorithm_of(flag, *text);
  for (const char* common : {"seed", "points_to_evaluate", "time_attr"}) {
    if (!before.is_object() || !before.contains(common)) continue;
    if (!own[key].contains(common)) own[key][common] = before[common];
  }
}

// A search or a scheduler as an object, whatever it was written as.
json& as_object(json& own, const char* key, const char* default_algorithm) {
  json& at = own[key];
  if (at.is_null()) at = default_algorithm;
  if (at.is_string()) {
    json object = json::object();
    object["algorithm"] = at;
    at = std::move(object);
  }
  return at;
}

// The search's own keys, as a YAML would have them.
json own_keys(const tune::SearchSpec& spec, const SearchFlags& flags) {
  json own = json::object();
  if (!spec.space.parameters().empty()) {
    own = tune::to_json(spec);
    own.erase("job");
    own.erase("name");
    // What follows from the space follows from it as the flags leave it.
    if (!spec.scheduler.pbt.mutations_given) own["scheduler"].erase("hyperparam_mutations");
  }
  for (const std::string& flag : flags.params) {
    try {
      const auto [name, domain] = tune::param_from_flag(flag);
      own["space"][name] = domain;
    } catch (const Error& error) {
      throw Error(ErrorCode::usage, "--param " + error.message()).with_hint(error.hint());
    }
  }
  if (flags.metric) own["metric"] = *flags.metric;
  if (flags.mode) own["mode"] = *flags.mode;
  set_algorithm(own, "search", "--search", flags.search);
  set_algorithm(own, "scheduler", "--scheduler", flags.scheduler);
  if (flags.seed) as_object(own, "search", "random")["seed"] = *flags.seed;
  if (!flags.points.empty()) {
    json points = json::array();
    for (const std::string& text : flags.points) points.push_back(point_of(text));
    as_object(own, "search", "random")["points_to_evaluate"] = std::move(points);
  }
  if (flags.num_samples) own["num_samples"] = *flags.num_samples;
  if (flags.max_concurrent) own["max_concurrent"] = *flags.max_concurrent;
  if (flags.time_budget_s) own["time_budget_s"] = *flags.time_budget_s;
  for (const std::string& text : flags.stop) {
    const auto [metric, bound] = stop_of(text);
    own["stop"][metric] = bound;
  }
  if (flags.fail_fast) own["fail_fast"] = value_of_text(*flags.fail_fast);
  if (!flags.warm_start.empty()) own["warm_start"] = flags.warm_start;
  return own;
}

// "space.lr.uniform[0]" as "--param lr.uniform[0]"; a key of the job as it is.
std::string flag_of(const tune::Path& path) {
  if (path.empty()) return {};
  const std::string& key = path.front();
  if (key == "space") {
    return path.size() == 1 ? "--param"
                            : "--param " + tune::to_string({path.begin() + 1, path.end()});
  }
  static const std::vector<std::string> kKeys = {
      "metric",         "mode",          "search", "scheduler", "num_samples",
      "max_concurrent", "time_budget_s", "stop",   "fail_fast", "warm_start"};
  if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) return tune::to_string(path);
  std::string flag = "--" + key;
  std::replace(flag.begin(), flag.end(), '_', '-');
  const std::string rest = tune::to_string({path.begin() + 1, path.end()});
  return rest.empty() ? flag : flag + " " + rest;
}

}  // namespace

void add_search_flags(CLI::App& app, SearchFlags& flags) {
  const auto option = [&](const char* names, auto& value, const char* text, const char* type) {
    return app.add_option(names, value, text)->type_name(type)->group(kSearchGroup);
  };
  option("--param", flags.params,
         "A parameter and its values: lr=loguniform:1e-4:1e-1, batch=choice:16:32, or "
         "NAME=JSON as in a YAML",
         "NAME=DOMAIN")
      ->allow_extra_args(false);
  option("--metric", flags.metric, "What is to become best, as rank 0 reports it", "NAME");
  option("--mode", flags.mode, "Whether less of it is better, or more", "min|max");
  option("--num-samples", flags.num_samples, "How many trials, of each combination of grid_search",
         "N");
  option("--search", flags.search,
         "How parameters are found; more as tpe:n_startup_trials=20, or JSON",
         "random|grid|sobol|tpe");
  option("--seed", flags.seed, "Of all that is left to chance (default: another each time)", "N");
  option("--point", flags.points, "Parameters of the first trials: lr=0.1,momentum=0.9",
         "NAME=VALUE,...")
      ->allow_extra_args(false);
  option("--scheduler", flags.scheduler,
         "What becomes of trials while they run; more as asha:max_t=27:reduction_factor=3, or JSON",
         "fifo|asha|median_stopping|pbt|pbt_replay");
  option("--max-concurrent", flags.max_concurrent, "Trials that run or wait in the queue at a time",
         "N");
  option("--time-budget-s", flags.time_budget_s,
         "Seconds after which no trial begins and those that run are stopped", "N");
  option("--stop", flags.stop, "When a trial is complete though its program goes on",
         "loss<=0.1|training_iteration=100")
      ->allow_extra_args(false);
  option("--fail-fast", flags.fail_fast,
         "Whether the first failed trial ends the search, or how many do", "true|false|N");
  option("--warm-start", flags.warm_start, "A search that has ended, from which tpe learns first",
         "SEARCH")
      ->allow_extra_args(false);
}

tune::SearchSpec with_search_flags(const tune::SearchSpec& spec, const SearchFlags& flags) {
  tune::SearchSpec whole;
  whole.job = spec.job;
  whole.name = spec.job.name;
  tune::Problems problems;
  tune::read_search_keys(own_keys(spec, flags), whole, problems);
  tune::validate(whole, problems);
  std::vector<Error> errors;
  for (const tune::Problem& problem : problems.list()) {
    const std::string flag = flag_of(problem.path);
    Error error(ErrorCode::usage, (flag.empty() ? "" : flag + ": ") + problem.message);
    if (!problem.hint.empty()) error.with_hint(problem.hint);
    errors.push_back(std::move(error));
  }
  if (errors.size() == 1) throw errors.front();
  if (!errors.empty()) throw SpecError(std::move(errors));
  return whole;
}

}  // namespace dtrain::cli
