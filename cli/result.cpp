#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/jobs.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

struct ResultFlags {
  std::string job;
};

// Ray's Result as one object.
nlohmann::json result_json(const nlohmann::json& job) {
  nlohmann::json result = nlohmann::json::object();
  for (const char* key : {"job", "name", "state", "reason", "exit_code", "created", "started",
                          "ended", "attempts", "metrics", "step", "best_checkpoint", "checkpoints",
                          "error", "resumed_from", "resumed_by", "started_from"}) {
    result[key] = job.contains(key) ? job[key] : nlohmann::json();
  }
  return result;
}

std::string checkpoint_line(const nlohmann::json& checkpoint) {
  std::string line =
      "step " + std::to_string(number_or(checkpoint, "step")) + "  " + text_or(checkpoint, "path");
  return line;
}

// With -v: what failed in the attempt, in the order in which it did.
void add_causes(const nlohmann::json& attempt, std::vector<std::vector<Cell>>& rows) {
  const nlohmann::json& causes = child(attempt, "causes");
  std::size_t shown = 0;
  for (const nlohmann::json& each : child(causes, "listed")) {
    const std::string time = text_or(each, "time");
    std::string when = time.empty() ? "at a time that is not known" : time;
    if (const auto sure = each.find("uncertainty_ms"); sure != each.end() && sure->is_number()) {
      when += " (± " + short_time(sure->get<double>() / 1e3) + ")";
    }
    rows.push_back({text_or(each, "role"), when + "  " + text_or(each, "what")});
    ++shown;
  }
  const auto count = static_cast<std::size_t>(number_or(causes, "count"));
  if (count > shown) rows.push_back({"", "and " + std::to_string(count - shown) + " more"});
}

int run_result(Context& context, const ResultFlags& options) {
  const wire::ApiClient client = context.client();
  const std::string id = wire::get_string(find_job(client, options.job, DefaultJob::newest), "job");
  const nlohmann::json job = client.get(job_target(id));
  if (context.globals.json) {
    context.print_json(result_json(job));
    return 0;
  }
  const bool color = context.terminal.color_out;
  const std::string state = text_or(job, "state");
  std::vector<std::vector<Cell>> rows;
  rows.push_back({"job", Cell(id, Color::bold)});
  std::string how = state;
  if (job.contains("exit_code") && job["exit_code"].is_number()) {
    how += ", exit code " + job["exit_code"].dump();
  }
  rows.push_back({"state", Cell(how, state_color(state))});
  // Where it is the root cause it is said there, with all that belongs to it.
  const std::string reason = text_or(job, "reason");
  if (!reason.empty() && reason != text_or(child(job, "error"), "message")) {
    rows.push_back({"reason", reason});
  }
  if (const std::string time = span(text_or(job, "started"), text_or(job, "ended"));
      !time.empty()) {
    rows.push_back({"time", time});
  }
  if (const std::string from = text_or(job, "resumed_from"); !from.empty()) {
    rows.push_back({"resumed from", from});
  }
  if (const std::string from = text_or(job, "started_from"); !from.empty()) {
    rows.push_back({"started from", from});
  }
  for (const nlohmann::json& by : child(job, "resumed_by")) {
    if (by.is_string()) rows.push_back({"resumed by", by.get<std::string>()});
  }
  const nlohmann::json& attempts = child(job, "attempts");
  if (attempts.size() > 1) {
    for (const nlohmann::json& attempt : attempts) {
      std::string line = text_or(attempt, "state");
      const std::string why = text_or(attempt, "reason");
      if (!why.empty()) line += ": " + why;
      rows.push_back({"attempt " + std::to_string(number_or(attempt, "attempt")), line});
    }
  }
  bool first = true;
  for (const auto& [name, value] : child(job, "metrics").items()) {
    rows.push_back({first ? "metrics" : "", name + " " + number(value)});
    first = false;
  }
  const nlohmann::json& best = child(job, "best_checkpoint");
  if (!best.is_null()) {
    rows.push_back({"best checkpoint", checkpoint_line(best)});
    if (const std::string line = metrics_line(child(best, "metrics")); !line.empty()) {
      rows.push_back({"", line});
    }
  }
  first = true;
  for (const nlohmann::json& checkpoint : child(job, "checkpoints")) {
    rows.push_back({first ? "checkpoints" : "",
                    checkpoint_line(checkpoint) + "  " +
                        human_bytes(static_cast<std::uint64_t>(number_or(checkpoint, "size")))});
    first = false;
  }
  const nlohmann::json& error = child(job, "error");
  if (!error.is_null()) {
    rows.push_back({"root cause", Cell(text_or(error, "message"), Color::red)});
    for (const std::string& line : split(text_or(error, "error_message"), '\n')) {
      if (!line.empty()) rows.push_back({"", line});
    }
    for (const nlohmann::json& line : child(error, "last_lines")) {
      if (line.is_string()) rows.push_back({"", Cell("| " + line.get<std::string>(), Color::dim)});
    }
    if (context.globals.verbose && !attempts.empty()) add_causes(attempts.back(), rows);
  }
  context.print(table({}, rows, color));
  return 0;
}

}  // namespace

Verb add_result(CLI::App& root) {
  auto options = std::make_shared<ResultFlags>();
  CLI::App* app =
      add_verb(root, "result", "Show how a job ended: metrics, checkpoints, the root cause",
               "  dtrain result\n"
               "  dtrain result mnist --json | jq .best_checkpoint.path\n");
  app->add_option("job", options->job, "Id, name or beginning of an id (default: the newest)")
      ->type_name("JOB");
  return {app, [options](Context& context) { return run_result(context, *options); }, std::nullopt};
}

}  // namespace dtrain::cli
