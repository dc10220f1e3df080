// What came of a search: `dtrain tune result` and `best`.
#include <algorithm>
#include <set>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/job_flags.hpp"
#include "cli/numbers.hpp"
#include "cli/searches.hpp"
#include "cli/sending.hpp"
#include "cli/tune_follow.hpp"
#include "cli/tune_result.hpp"
#include "cli/tune_verbs.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/tune/trial_job.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using nlohmann::json;

constexpr int kShownResults = 20;

struct TuneResultFlags {
  std::string search;
  bool csv = false;
  bool all = false;
};

int run_tune_result(Context& context, const TuneResultFlags& options) {
  const wire::ApiClient client = context.client();
  const std::string id = find_search_id(client, options.search);
  const bool whole = options.csv || context.globals.json;
  json search =
      client.get(search_target(id, whole ? "" : "?trials=" + std::to_string(kShownResults)));
  if (whole || options.all) search["trials"] = all_trials(client, id);
  if (options.csv) {
    const std::string text = trials_csv(search);
    context.print(context.terminal.out ? printable(text) : text);
  } else if (context.globals.json) {
    context.print_json(search);
  } else {
    const std::size_t columns = context.terminal.out ? terminal_columns() : 0;
    context.print(search_picture(search, columns, 0, context.terminal.color_out, true));
  }
  return 0;
}

struct TuneBestFlags {
  std::string search;
  std::string scope = "last";
};

// The best by any report of each trial, not only the last.
json best_of_all(const wire::ApiClient& client, const std::string& id, bool greatest) {
  json best;
  each_trial(client, id, 0, UINT64_MAX, [&](const json& trial) {
    if (!trial.contains("best") || !trial["best"].is_number()) return;
    if (text_or(trial, "state") == "failed") return;
    const bool better =
        best.is_null() || (greatest ? trial["best"] > best["best"] : trial["best"] < best["best"]);
    if (better) best = trial;
  });
  return best;
}

// The best checkpoint of the job that made the trial's newest one, as its `checkpoint` keys rank
// them: without a score that is the newest. `path` and `metrics` are null where it is not there any
// more.
json checkpoint_of(const wire::ApiClient& client, const json& trial) {
  json checkpoint = child(trial, "checkpoint");
  if (checkpoint.is_null()) return checkpoint;
  checkpoint["path"] = checkpoint["metrics"] = nullptr;
  try {
    const json job = client.get(job_target(wire::get_string(checkpoint, "job")));
    const json& best = child(job, "best_checkpoint");
    for (const char* key : {"number", "step", "path", "metrics"}) {
      if (best.is_object() && best.contains(key)) checkpoint[key] = best[key];
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;  // the job was removed meanwhile
  }
  checkpoint.erase("iteration");  // that of the newest
  return checkpoint;
}

int run_tune_best(Context& context, const TuneBestFlags& options) {
  const wire::ApiClient client = context.client();
  const std::string id = find_search_id(client, options.search);
  const json search = client.get(search_target(id));
  const std::string metric = text_or(search, "metric");
  const bool last = options.scope == "last";
  json trial;
  if (!last) {
    trial = best_of_all(client, id, text_or(search, "mode") == "max");
  } else if (const json& best = child(search, "best"); !best.is_null()) {
    each_trial(client, id, static_cast<std::uint64_t>(number_or(best, "trial")), 1,
               [&](const json& one) { trial = one; });
  }
  if (trial.is_null()) {
    throw Error(ErrorCode::not_found,
                "no trial of " + id + " has reported a number as " + printable(metric, false));
  }
  const json& value = trial[last ? "value" : "best"];
  const long long iteration = number_or(trial, last ? "iteration" : "best_iteration");
  const json checkpoint = checkpoint_of(client, trial);
  const TrainAgain again = train_again(search, trial, here(), context.other_cluster());
  const std::string job = text_or(trial, "job");
  if (context.globals.json) {
    json out = {{"search", id},
                {"trial", number_or(trial, "trial")},
                {"state", text_or(trial, "state")},
                {"metric", metric},
                {"value", value},
                {"iteration", iteration},
                {"params", child(trial, "params")},
                {"metrics", child(trial, "metrics")},
                {"job", job},
                {"checkpoint", checkpoint},
                {"command", again.words}};
    context.print_json(out);
    return 0;
  }
  if (context.globals.quiet) {
    context.print((checkpoint.is_null() ? job : text_or(checkpoint, "job")) + "\n");
    return 0;
  }
  std::vector<std::vector<Cell>> rows;
  rows.push_back({"search", id + " (" + text_or(search, "state") + ")"});
  rows.push_back({"trial", Cell(std::to_string(number_or(trial, "trial")), Color::bold)});
  rows.push_back({"state", Cell(text_or(trial, "state"), trial_color(text_or(trial, "state")))});
  rows.push_back({printable(metric, false),
                  Cell(number(value) + ", iteration " + std::to_string(iteration), Color::green)});
  bool first = true;
  for (const auto& [name, given] : flat_params(child(trial, "params"), space_of(search))) {
    rows.push_back({first ? "parameters" : "", name + " " + tune::word_of(given)});
    first = false;
  }
  rows.push_back({"job", job});
  if (!checkpoint.is_null()) {
    const std::string path = text_or(checkpoint, "path");
    rows.push_back({"checkpoint", "step " + std::to_string(number_or(checkpoint, "step")) + "  " +
                                      (path.empty() ? "it is not there any more" : path)});
    if (!path.empty()) {
      rows.push_back({"to have it", "dtrain pull" + context.cluster_option() + " " +
                                        text_or(checkpoint, "job") + " --best"});
    }
  }
  rows.push_back({"to train it again", shell_join(again.words)});
  if (number_or(trial, "exploits") > 0) {
    rows.push_back({"", "with what it had at the end: pbt changed it on the way"});
  }
  if (!again.unsaid.empty()) {
    rows.push_back({"", "its " + join(again.unsaid, ", ") + ": only in a YAML"});
  }
  context.print(table({}, rows, context.terminal.color_out));
  return 0;
}

// As --param has it: short where that says the same.
std::string constant_flag(const std::string& name, const json& value) {
  std::string brief = name + "=" + tune::word_of(value);
  try {
    const auto [key, domain] = tune::param_from_flag(brief);
    tune::Problems problems;
    const tune::SearchSpace space =
        tune::SearchSpace::from_json(json::object({{key, domain}}), {}, problems);
    const tune::Parameter* read = problems.empty() ? space.find(name) : nullptr;
    if (read != nullptr && read->domain.kind == tune::Domain::Kind::constant &&
        read->domain.values.front() == value) {
      return brief;
    }
  } catch (const Error&) {  // then it is JSON
  }
  return name + "=" + wire::dump(json::object({{"constant", value}}));
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string csv_line(const std::vector<std::string>& cells) {
  std::vector<std::string> quoted;
  for (const std::string& cell : cells) quoted.push_back(csv_cell(cell));
  return join(quoted, ",") + "\n";
}

std::string csv_value(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? "" : tune::word_of(*found);
}

}  // namespace

std::string trials_csv(const json& search) {
  const std::vector<const char*> fixed = {"trial", "state",          "iteration", "step",
                                          "best",  "best_iteration", "job"};
  const tune::SearchSpace space = space_of(search);
  const std::string objective = text_or(search, "metric");
  std::set<std::string> params;
  std::set<std::string> metrics;
  for (const json& trial : child(search, "trials")) {
    for (const auto& [name, value] : flat_params(child(trial, "params"), space)) {
      params.insert(name);
    }
    for (const auto& [name, value] : child(trial, "metrics").items()) metrics.insert(name);
    if (!csv_value(trial, "value").empty()) metrics.insert(objective);
  }
  std::vector<std::string> cells(fixed.begin(), fixed.end());
  for (const std::string& name : params) cells.push_back("config/" + name);
  std::set<std::string> taken(cells.begin(), cells.end());
  taken.insert("reason");
  for (const std::string& name : metrics) {
    std::string column = name;
    while (!taken.insert(column).second) column.insert(0, "metrics/");
    cells.push_back(column);
  }
  cells.emplace_back("reason");
  std::string text = csv_line(cells);
  for (const json& trial : child(search, "trials")) {
    cells.clear();
    for (const char* key : fixed) cells.push_back(csv_value(trial, key));
    const tune::Params own = flat_params(child(trial, "params"), space);
    for (const std::string& name : params) {
      const auto found = own.find(name);
      cells.push_back(found == own.end() ? "" : tune::word_of(found->second));
    }
    // What the search goes by it tells itself, also where the newest job has not reported.
    const std::string value = csv_value(trial, "value");
    for (const std::string& name : metrics) {
      const std::string last = csv_value(child(trial, "metrics"), name.c_str());
      cells.push_back(name == objective && !value.empty() ? value : last);
    }
    cells.push_back(csv_value(trial, "reason"));
    text += csv_line(cells);
  }
  return text;
}

TrainAgain train_again(const json& search, const json& trial, const std::string& folder,
                       const std::string& cluster) {
  const tune::SearchSpace space = space_of(search);
  const json& spec = child(search, "spec");
  const JobSpec pattern = job_spec_from_json(wire::member(spec, "job"));
  const tune::Params params = flat_params(child(trial, "params"), space);
  const JobSpec job = tune::trial_job(pattern, space, params);
  // A program that reads some of its parameters itself gets them from a search of one trial alone.
  const std::set<std::string> said = tune::placeholders_of(pattern, space);
  const bool by_words = std::all_of(params.begin(), params.end(), [&](const auto& each) {
    const tune::Parameter* parameter = space.find(each.first);
    return said.contains(each.first) ||
           (parameter != nullptr && parameter->domain.kind == tune::Domain::Kind::constant);
  });
  const JobWords own = words_of_job(by_words ? job : pattern, folder);
  TrainAgain again;
  again.unsaid = own.unsaid;
  again.words = {"dtrain", by_words ? "submit" : "tune"};
  if (!cluster.empty()) again.words.insert(again.words.end(), {"-c", cluster});
  if (!by_words) {
    for (const auto& [name, value] : params) {
      again.words.insert(again.words.end(), {"--param", constant_flag(name, value)});
    }
    again.words.insert(again.words.end(),
                       {"--metric", text_or(search, "metric"), "--mode", text_or(search, "mode")});
  }
  again.words.insert(again.words.end(), own.flags.begin(), own.flags.end());
  again.words.insert(again.words.end(), own.command.begin(), own.command.end());
  return again;
}

Verb add_tune_result(CLI::App& tune) {
  auto options = std::make_shared<TuneResultFlags>();
  CLI::App* app = add_verb(tune, "result", "Show what came of each trial, and by which job",
                           "  dtrain tune result\n"
                           "  dtrain tune result mnist --csv > trials.csv\n"
                           "  dtrain tune result --json | jq '.trials[].value'\n");
  add_search_argument(*app, options->search);
  app->add_flag("--csv", options->csv,
                "A row for each trial: parameters as config/NAME, its last metrics, its job");
  app->add_flag("-a,--all", options->all, "All trials, by number, not only the first 20");
  return {app, [options](Context& context) { return run_tune_result(context, *options); },
          std::nullopt};
}

Verb add_tune_best(CLI::App& tune) {
  auto options = std::make_shared<TuneBestFlags>();
  CLI::App* app = add_verb(
      tune, "best", "Show the best trial: parameters, checkpoint, and how to train it again",
      "  dtrain tune best\n"
      "  dtrain tune best --scope all    by the best that a trial ever reported\n"
      "  dtrain tune best mnist --json | jq .checkpoint.path\n"
      "  dtrain pull $(dtrain tune best -q) --best -o model    -q: the job of its checkpoint\n");
  add_search_argument(*app, options->search);
  app->add_option("--scope", options->scope,
                  "Whether a trial is as good as its last report, or as the best of all")
      ->type_name("last|all")
      ->check(one_of({"last", "all"}));
  return {app, [options](Context& context) { return run_tune_best(context, *options); },
          std::nullopt};
}

}  // namespace dtrain::cli
