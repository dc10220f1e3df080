#include "cli/tune_verbs.hpp"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/job_flags.hpp"
#include "cli/numbers.hpp"
#include "cli/searches.hpp"
#include "cli/tune_follow.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/yaml.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using nlohmann::json;

constexpr int kShownTrials = 20;

struct TuneStatusFlags {
  std::string search;
  bool follow = false;
  bool all = false;
};

int run_tune_status(Context& context, const TuneStatusFlags& options) {
  const wire::ApiClient client = context.client();
  const std::string id = find_search_id(client, options.search);
  if (options.follow) return finish_search(context, id, follow_search(context, client, id));
  const bool all = options.all || context.globals.json;
  json search = client.get(search_target(id, all ? "" : "?trials=" + std::to_string(kShownTrials)));
  if (options.all) search["trials"] = all_trials(client, id);
  if (context.globals.json) {
    context.print_json(search);
    return 0;
  }
  const std::size_t columns = context.terminal.out ? terminal_columns() : 0;
  context.print(search_picture(search, columns, 0, context.terminal.color_out));
  return 0;
}

int run_tune_list(Context& context) {
  const json answer = all_searches(context.client());
  if (context.globals.json) {
    context.print_json(answer);
    return 0;
  }
  const std::string text = searches_table(child(answer, "searches"), context.terminal.color_out);
  context.print(text.empty() ? "no searches yet\n" : text);
  return 0;
}

struct TuneStopFlags {
  std::string search;
  bool detach = false;
  std::optional<int> grace_s;
};

int run_tune_stop(Context& context, const TuneStopFlags& options) {
  const wire::ApiClient client = context.client();
  const json answer = all_searches(client);
  const json& known = wire::member(answer, "searches");
  const std::string id = wire::get_string(
      resolve_job(known, options.search, DefaultJob::only_running, kListedSearches), "search");
  const std::string meant = meant_by_name(known, options.search, id, kListedSearches);
  if (!meant.empty()) context.note(meant);
  json body = json::object();
  if (options.grace_s) body["grace_s"] = *options.grace_s;
  json summary = client.post(search_target(id, "/stop"), body);
  if (!options.detach && !job_ended(text_or(summary, "state"))) {
    FollowedSearch result = follow_search(context, client, id, true);
    if (result.interrupted != 0) {
      context.warn("not waiting any more; " + id + " is being stopped");
      return 128 + result.interrupted;
    }
    // Not asked for anew: the way to the head may be another one by now.
    summary = std::move(result.search);
    for (const char* more : {"spec", "scheduler_state", "exploitations", "trials"}) {
      summary.erase(more);
    }
  }
  if (context.globals.json) {
    context.print_json(summary);
  } else if (!context.globals.quiet) {
    context.print(id + " " + text_or(summary, "state") + "\n");
    if (text_or(summary, "state") == "stopped") {
      context.note("it goes on by dtrain tune resume" + context.cluster_option() + " " + id);
    }
  }
  return 0;
}

struct TuneResumeFlags {
  std::string search;
  bool detach = false;
};

int run_tune_resume(Context& context, const TuneResumeFlags& options) {
  const wire::ApiClient client = context.client();
  const std::string id = find_search_id(client, options.search);
  const json search = client.get(search_target(id));
  json body = json::object();
  const JobSpec job = job_spec_from_json(wire::member(wire::member(search, "spec"), "job"));
  if (!job.secrets.empty()) body["secrets"] = read_secrets(job, process_environment());
  const json summary = client.post(search_target(id, "/resume"), body);
  if (!options.detach) return finish_search(context, id, follow_search(context, client, id));
  if (context.globals.json) {
    context.print_json(summary);
  } else if (!context.globals.quiet) {
    context.print(id + " " + text_or(summary, "state") + "\n");
  }
  return 0;
}

struct TuneRmFlags {
  std::vector<std::string> searches;
  bool yes = false;
};

int run_tune_rm(Context& context, const TuneRmFlags& options) {
  const wire::ApiClient client = context.client();
  const json answer = all_searches(client);
  const json& known = wire::member(answer, "searches");
  // All are found before one is removed: a slip in the last name must cost nothing.
  std::vector<std::string> references = options.searches;
  if (references.empty()) references.emplace_back();
  std::vector<std::string> chosen;
  for (const std::string& reference : references) {
    const json search = resolve_job(known, reference, DefaultJob::only_one, kListedSearches);
    const std::string id = wire::get_string(search, "search");
    const std::string meant = meant_by_name(known, reference, id, kListedSearches);
    if (!meant.empty()) context.note(meant);
    if (!job_ended(wire::get_string(search, "state"))) {
      throw Error(ErrorCode::conflict, id + " is " + wire::get_string(search, "state"))
          .with_hint("dtrain tune stop" + context.cluster_option() + " " + id + " first");
    }
    if (std::find(chosen.begin(), chosen.end(), id) == chosen.end()) chosen.push_back(id);
  }
  if (!options.yes) {
    const auto sure = context.ask("Remove " + join(chosen, ", ") +
                                  " with all trials, their logs and checkpoints?");
    if (sure && !*sure) {
      context.note("left as it is");
      return 1;
    }
  }
  for (const std::string& id : chosen) {
    client.remove(search_target(id));
    if (!context.globals.json && !context.globals.quiet) context.print("removed " + id + "\n");
  }
  if (context.globals.json) context.print_json({{"removed", chosen}});
  return 0;
}

}  // namespace

std::string searches_table(const json& searches, bool color) {
  std::vector<std::vector<Cell>> rows;
  for (const json& search : searches) {
    const std::string state = text_or(search, "state");
    const std::string reason = text_or(search, "reason");
    rows.push_back({text_or(search, "search"), Cell(state, state_color(state)), begun_text(search),
                    span(text_or(search, "created"), text_or(search, "ended")),
                    reason.empty() ? best_line(search) : reason});
  }
  return rows.empty() ? "" : table({"SEARCH", "STATE", "TRIALS", "TIME", ""}, rows, color);
}

Verb add_tune_status(CLI::App& tune) {
  auto options = std::make_shared<TuneStatusFlags>();
  CLI::App* app = add_verb(tune, "status", "Show what a search stands at, and its trials",
                           "  dtrain tune status\n"
                           "  dtrain tune status -f mnist    come back to it\n");
  add_search_argument(*app, options->search);
  app->add_flag("-f,--follow", options->follow, "Follow it to its end, as dtrain tune does");
  app->add_flag("-a,--all", options->all, "All trials, not only the first 20");
  return {app, [options](Context& context) { return run_tune_status(context, *options); },
          std::nullopt};
}

Verb add_tune_list(CLI::App& tune) {
  CLI::App* app =
      add_verb(tune, "list", "Show all searches, the newest first", "  dtrain tune list\n");
  return {app, run_tune_list, std::nullopt};
}

Verb add_tune_stop(CLI::App& tune) {
  auto options = std::make_shared<TuneStopFlags>();
  CLI::App* app =
      add_verb(tune, "stop", "Stop a search and its trials; resume goes on with it",
               "  dtrain tune stop mnist-k3x7qa\n"
               "  dtrain stop mnist-4-abcdef    one trial, by its job: the search goes on\n");
  app->add_option("search", options->search,
                  "Id, name (the newest of it that runs) or beginning of an id (default: the one "
                  "that runs, if it is one)")
      ->type_name("SEARCH");
  app->add_option("--grace-s", options->grace_s,
                  "Seconds from SIGTERM to SIGKILL (default: the job's stop_grace_s)")
      ->check(at_least(0))
      ->type_name("N");
  app->add_flag("-d,--detach", options->detach, "Do not wait for its end");
  return {app, [options](Context& context) { return run_tune_stop(context, *options); },
          std::nullopt};
}

Verb add_tune_resume(CLI::App& tune) {
  auto options = std::make_shared<TuneResumeFlags>();
  CLI::App* app = add_verb(
      tune, "resume", "Go on with a search that was stopped: its trials from their checkpoints",
      "  dtrain tune resume\n"
      "  dtrain tune resume mnist -d\n");
  add_search_argument(*app, options->search);
  app->add_flag("-d,--detach", options->detach, "Do not follow it");
  return {app, [options](Context& context) { return run_tune_resume(context, *options); },
          std::nullopt};
}

Verb add_tune_rm(CLI::App& tune) {
  auto options = std::make_shared<TuneRmFlags>();
  CLI::App* app = add_verb(
      tune, "rm", "Forget searches that have ended, with all trials, their logs and checkpoints",
      "  dtrain tune rm mnist-k3x7qa\n");
  app->add_option("searches", options->searches,
                  "Ids, names (the newest of each) or beginnings of ids")
      ->type_name("SEARCH...");
  app->add_flag("-y,--yes", options->yes, "Do not ask (without a terminal nothing is asked)");
  return {app, [options](Context& context) { return run_tune_rm(context, *options); },
          std::nullopt};
}

}  // namespace dtrain::cli
