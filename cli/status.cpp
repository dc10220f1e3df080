#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/follow.hpp"
#include "cli/jobs.hpp"
#include "cli/rank_places.hpp"
#include "cli/searches.hpp"
#include "cli/step_times.hpp"
#include "launcher/cluster/counted.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

struct StatusFlags {
  std::string file;
  bool all = false;
  bool trials = false;
};

constexpr std::size_t kShownJobs = 20;
constexpr std::size_t kShownSearches = 5;
constexpr std::size_t kShownNodes = 50;
constexpr std::size_t kNamed = 3;  // of nodes or jobs, in a row
constexpr std::size_t kShownForgotten = 3;
constexpr std::size_t kShownUnknown = 3;

std::string gpu_text(const nlohmann::json& node) {
  const long long gpus = number_or(node, "gpus", 0);
  return gpus == 0 ? "" : std::to_string(gpus);
}

// "  GPUs in use: 0, 3 (0.75)", ended; empty: none is.
std::string gpus_in_use(const nlohmann::json& node) {
  std::map<int, std::string> gpus;
  for (const auto& [gpu, part] : child(node, "gpus_used").items()) {
    const std::string much = part == 1 ? "" : " (" + part.dump() + ")";
    gpus[number_from<int>(gpu).value_or(0)] = gpu + much;
  }
  std::vector<std::string> words;
  for (const auto& [gpu, word] : gpus) words.push_back(word);
  return words.empty() ? "" : "  GPUs in use: " + join(words, ", ") + "\n";
}

std::string names(const nlohmann::json& list) {
  std::vector<std::string> texts;
  if (list.is_array()) {
    for (const nlohmann::json& item : list) {
      if (item.is_string()) texts.push_back(item.get<std::string>());
    }
  }
  return join_some(texts, kNamed, ",");
}

std::string jobs_there(const nlohmann::json& node) {
  std::string jobs = names(child(node, "jobs"));
  const std::string of = text_or(node, "spare_of");
  if (of.empty()) return jobs;
  return jobs + (jobs.empty() ? "" : ",") + "spare of " + of;
}

std::string when(const nlohmann::json& job) {
  const std::string started = text_or(job, "started");
  if (started.empty()) return ago(text_or(job, "created"));
  return span(started, text_or(job, "ended"));
}

std::string why(const nlohmann::json& job) {
  std::string reason = text_or(job, "reason");
  if (text_or(job, "state") != "running" || reason.starts_with("hang: ")) return reason;
  const std::string progress = progress_line(child(job, "progress"));
  return progress.empty() ? reason : progress;
}

// "costs $24.58 an hour, $3.10 in 2h since its first machine; no price is known of 1 machine";
// empty: its provider takes no money.
std::string cost_text(const nlohmann::json& costs) {
  if (!costs.is_object()) return {};
  if (const std::string error = text_or(child(costs, "error"), "message"); !error.empty()) {
    return "what it costs is not known: " + error;
  }
  const auto dollars = [&](const char* key) {
    const auto value = costs.find(key);
    return value != costs.end() && value->is_number() ? human_dollars(value->get<double>()) : "";
  };
  const auto unpriced = static_cast<std::size_t>(number_or(costs, "unpriced", 0));
  const auto ended = static_cast<std::size_t>(number_or(costs, "unpriced_ended", 0));
  std::string text = "costs " + dollars("per_hour") + " an hour, " + dollars("spent") + " in " +
                     span(text_or(costs, "since"), "");
  if (unpriced > 0) text += "; no price is known of " + counted(unpriced, "machine");
  if (ended > 0) text += "; none was known of " + counted(ended, "machine") + " before";
  if (const std::string most = dollars("max_per_hour"); !most.empty()) {
    text += "; max_cost_per_hour is " + most;
  }
  return text;
}

// When it goes down by itself.
std::string idle_line(const nlohmann::json& idle) {
  if (!idle.is_object()) return {};
  const std::string end = text_or(idle, "head") == "stop" ? "\n" : ", its head's machine too\n";
  if (const std::string why = text_or(idle, "going"); !why.empty()) {
    return "goes down now: " + why + end;
  }
  const std::string at = text_or(idle, "at");
  if (!at.empty()) return "goes down at " + at + " if nothing runs until then" + end;
  const auto after = std::chrono::milliseconds(number_or(idle, "after_ms", 0));
  const std::string busy = text_or(idle, "busy");
  return "goes down once nothing has run for " + human_duration(after) +
         (busy.empty() ? "" : " (" + busy + ")") + end;
}

// All, or those to which something is to be said before those that are just ready; in their order.
std::vector<const nlohmann::json*> shown_nodes(const nlohmann::json& nodes, bool all) {
  const auto is_ready = [](const nlohmann::json& node) {
    return text_or(node, "state") == "ready" && text_or(node, "reason").empty();
  };
  const auto others = static_cast<std::size_t>(
      std::count_if(nodes.begin(), nodes.end(), [&](const auto& node) { return !is_ready(node); }));
  std::size_t ready = kShownNodes - std::min(others, kShownNodes);  // that may be shown still
  std::vector<const nlohmann::json*> shown;
  for (const nlohmann::json& node : nodes) {
    if (!all && (shown.size() == kShownNodes || (is_ready(node) && ready == 0))) continue;
    if (is_ready(node) && ready > 0) --ready;
    shown.push_back(&node);
  }
  return shown;
}

// "and 9980 queued, 3 succeeded: dtrain status --all"; empty: all are shown.
std::string other_jobs(const nlohmann::json& counts, const nlohmann::json& jobs,
                       std::size_t shown) {
  std::map<std::string, long long> left;
  for (const auto& [state, count] : counts.items()) left[state] = number_or(counts, state.c_str());
  for (std::size_t i = 0; i < shown; ++i) --left[text_or(jobs[i], "state")];
  std::vector<std::string> parts;
  for (const auto& [state, count] : left) {
    if (count > 0) parts.push_back(std::to_string(count) + " " + state);
  }
  return parts.empty() ? "" : "and " + join(parts, ", ") + ": dtrain status --all\n";
}

// What is wrong with the head's database, or was lately.
std::string store_lines(const nlohmann::json& store, bool verbose, bool color) {
  std::string text;
  const auto alarm = [&](const std::string& line) {
    text += paint("head's database: ", Color::red, color) + line + "\n";
  };
  const nlohmann::json& restored = child(store, "restored");
  if (restored.is_object() && (verbose || restored.value("lately", false))) {
    const std::string damaged = text_or(restored, "damaged");
    const auto saved = static_cast<std::size_t>(number_or(restored, "jobs_saved", 0));
    alarm("restored " + ago(text_or(restored, "time")) + " from a copy of " +
          text_or(restored, "copy_of") + ", since " + text_or(restored, "why") +
          "; what happened between is not known" +
          (saved == 0 ? "" : ", but for " + counted(saved, "job") + " that could be read") +
          (damaged.empty() ? "" : "; the damaged one is kept as " + damaged));
  }
  const nlohmann::json& unknown = child(store, "unknown_jobs");
  std::vector<std::string> ids;
  for (const nlohmann::json& job : unknown) {
    if (ids.size() < kShownUnknown) ids.push_back(text_or(job, "job"));
  }
  const auto count = static_cast<std::size_t>(number_or(store, "unknown", 0));
  if (count > 0) {
    alarm(counted(count, "job") + " not known to it, whose files stay: " + join(ids, ", ") +
          (count > ids.size() ? "…" : "") + " (dtrain rm ID removes them)");
  }
  const nlohmann::json& backup = child(store, "backup");
  const std::string time = text_or(backup, "time");
  const std::string trouble = text_or(backup, "trouble");
  if (const std::string why = text_or(store, "trouble"); !why.empty()) {
    alarm("it cannot be written, and is tried again: " + why);
  }
  if (!trouble.empty()) {
    alarm("no copy can be made" + (time.empty() ? "" : ", the last is of " + time) + ": " +
          trouble);
  } else if (verbose) {
    text += "database copied " + (time.empty() ? "not yet" : ago(time)) + ": " +
            text_or(backup, "path") + "\n";
  }
  return text;
}

// The searches, the newest first, and how many there are beside those.
std::string search_lines(const nlohmann::json& status, bool all, bool color) {
  const nlohmann::json& searches = child(status, "searches");
  if (searches.empty()) return {};
  nlohmann::json shown = nlohmann::json::array();
  for (const nlohmann::json& search : searches) {
    if (shown.size() < kShownSearches || all) shown.push_back(search);
  }
  long long count = 0;
  const nlohmann::json& counts = child(status, "search_counts");
  for (const auto& [state, number_of] : counts.items()) count += number_or(counts, state.c_str());
  std::string text = "\n" + searches_table(shown, color);
  if (const long long more = count - static_cast<long long>(shown.size()); more > 0) {
    text += "and " + std::to_string(more) + " more: dtrain tune list\n";
  }
  return text;
}

int run_status(Context& context, const StatusFlags& options) {
  if (!options.file.empty()) choose_by_yaml(context, options.file);
  const wire::ApiClient client = context.client();
  const bool all = options.all || context.globals.json;
  std::string query;
  if (!all) query = "?jobs=" + std::to_string(kShownJobs);
  if (options.trials) query += query.empty() ? "?trials=1" : "&trials=1";
  const nlohmann::json status = client.get("/v1/status" + query);
  if (context.globals.json) {
    context.print_json(status);
    return 0;
  }
  const bool color = context.terminal.color_out;
  const nlohmann::json& cluster = child(status, "cluster");
  std::string text = paint(text_or(cluster, "name"), Color::bold, color) + "  " +
                     text_or(cluster, "provider") + ", up for " +
                     span(text_or(cluster, "started"), "") + ", dtrain " +
                     text_or(cluster, "version") + "\n";
  const nlohmann::json& head = child(cluster, "head");
  if (context.globals.verbose) {
    text += "id " + text_or(cluster, "id") + ", head pid " +
            std::to_string(number_or(head, "pid")) + ", port " +
            std::to_string(number_or(head, "port")) + "\n" + "socket " + client.socket().string() +
            "\nroot " + text_or(head, "root") + "\nlog " + text_or(head, "log") + "\n";
  }
  if (const std::string cost = cost_text(child(status, "costs")); !cost.empty()) {
    text += cost + "\n";
  }
  if (const std::string problem = text_or(head, "problem"); !problem.empty()) {
    text += paint("head: " + problem, Color::red, color) + "\n";
  }
  for (const nlohmann::json& warning : child(cluster, "warnings")) {
    if (!warning.is_string()) continue;
    text += paint("warning: ", Color::yellow, color) + warning.get<std::string>() + "\n";
  }
  text += store_lines(child(cluster, "store"), context.globals.verbose, color);
  text += idle_line(child(cluster, "down_when_idle"));
  const nlohmann::json& forgotten = child(cluster, "forgotten");
  std::size_t told = 0;
  for (const nlohmann::json& job : forgotten) {
    if (told++ == kShownForgotten) break;
    text += "forgotten " + ago(text_or(job, "time")) + ": " + text_or(job, "job") + " (" +
            text_or(job, "reason") + ")\n";
  }
  if (forgotten.size() > kShownForgotten) {
    text += "and " + std::to_string(forgotten.size() - kShownForgotten) +
            " more: dtrain status --json\n";
  }
  std::map<std::string, std::string> stays;  // why, of machines that no job needs
  for (const nlohmann::json& machine : child(child(status, "machines"), "machines")) {
    stays[text_or(machine, "node")] = text_or(machine, "stays");
  }
  std::vector<std::vector<Cell>> rows;
  const std::vector<const nlohmann::json*> nodes = shown_nodes(child(status, "nodes"), options.all);
  for (const nlohmann::json* each : nodes) {
    const nlohmann::json& node = *each;
    const std::string state = text_or(node, "state");
    const std::string& why_there = stays[text_or(node, "node")];
    rows.push_back({text_or(node, "node"), Cell(state, state_color(state)),
                    text_or(node, "address"), std::to_string(number_or(node, "cpus")),
                    gpu_text(node),
                    human_bytes(static_cast<std::uint64_t>(number_or(node, "memory"))),
                    jobs_there(node), why_there.empty() ? text_or(node, "reason") : why_there});
  }
  // Machines that the head has asked for, and that are no nodes yet.
  std::set<std::string> joined;
  for (const nlohmann::json& node : child(status, "nodes")) joined.insert(text_or(node, "node"));
  const nlohmann::json& machines = child(status, "machines");
  for (const nlohmann::json& machine : child(machines, "machines")) {
    if (joined.contains(text_or(machine, "node"))) continue;
    const std::string state = text_or(machine, "state");
    rows.push_back({text_or(machine, "node"), Cell(state, state_color(state)), "", "", "", "", "",
                    text_or(machine, "reason")});
  }
  for (const nlohmann::json& type : child(machines, "types")) {
    const std::string why = text_or(child(type, "error"), "message");
    if (why.empty()) continue;
    text +=
        paint("no more of type " + text_or(type, "type") + ": " + why, Color::red, color) + "\n";
  }
  if (const std::string trouble = text_or(child(machines, "trouble"), "message");
      !trouble.empty()) {
    text += paint("the head cannot ask for machines: " + trouble, Color::red, color) + "\n";
  }
  text +=
      "\n" + table({"NODE", "STATE", "ADDRESS", "CPUS", "GPUS", "MEMORY", "JOBS", ""}, rows, color);
  if (const std::size_t more = child(status, "nodes").size() - nodes.size(); more > 0) {
    text += "and " + counted(more, "more node") + ": dtrain status --all\n";
  }
  if (context.globals.verbose) {
    // Long paths would push the columns apart: they stand below.
    for (const nlohmann::json* each : nodes) {
      const nlohmann::json& node = *each;
      text += text_or(node, "node") + ": dtrain " + text_or(node, "version") + "\n  root " +
              text_or(node, "root") + "\n  log " + text_or(node, "log") + "\n" + gpus_in_use(node);
    }
  }
  text += search_lines(status, options.all, color);
  rows.clear();
  const nlohmann::json& jobs = child(status, "jobs");
  for (const nlohmann::json& job : jobs) {
    if (rows.size() == kShownJobs && !options.all) break;
    const std::string state = text_or(job, "state");
    rows.push_back({text_or(job, "job"), Cell(state, state_color(state)),
                    std::to_string(number_or(job, "world_size", 0)), names(child(job, "nodes")),
                    when(job), why(job)});
  }
  text += "\n";
  text += rows.empty() ? "no jobs yet\n"
                       : table({"JOB", "STATE", "RANKS", "NODES", "TIME", ""}, rows, color);
  text += other_jobs(child(status, "job_counts"), jobs, rows.size());
  if (context.globals.verbose) {
    std::size_t looked = 0;
    for (const nlohmann::json& job : jobs) {
      if (text_or(job, "state") != "running") continue;
      if (looked++ == kShownJobs) {
        text += "of further jobs that run: dtrain result --json JOB\n";
        break;
      }
      const std::string id = text_or(job, "job");
      std::string places;
      std::string times;
      try {
        const nlohmann::json details = client.get(job_target(id));
        places = gpu_places(details) + rank_places(details);
        times = step_times(details, color);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::not_found) throw;  // it was removed meanwhile
      }
      for (const std::string& line : split(places, '\n')) {
        if (!line.empty()) text += id + " " + line + "\n";
      }
      if (!times.empty()) text += id + ", a step of its ranks:\n" + times;
    }
  }
  context.print(text);
  return 0;
}

}  // namespace

Verb add_status(CLI::App& root) {
  auto options = std::make_shared<StatusFlags>();
  CLI::App* app = add_verb(root, "status", "Show the nodes, the jobs, and why a job waits",
                           "  dtrain status\n"
                           "  dtrain status -v              with folders and logs\n"
                           "  dtrain status --json\n");
  app->add_option("file", options->file, "The cluster YAML, in place of -c")
      ->type_name("CLUSTER.yaml");
  app->add_flag("-a,--all", options->all, "All jobs and nodes, not only the first 20 and 50");
  app->add_flag("--trials", options->trials, "Jobs that are trials of a search, too");
  return {app, [options](Context& context) { return run_status(context, *options); }, std::nullopt};
}

}  // namespace dtrain::cli
