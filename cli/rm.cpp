#include <algorithm>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/jobs.hpp"
#include "launcher/core/error.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

struct RmFlags {
  std::vector<std::string> jobs;
  bool yes = false;
};

int run_rm(Context& context, const RmFlags& options) {
  const wire::ApiClient client = context.client();
  KnownJobs jobs(client);
  // All are found before one is removed: a slip in the last name must cost nothing.
  std::vector<nlohmann::json> chosen;
  if (options.jobs.empty()) {
    chosen.push_back(resolve_job(jobs.meant_by(""), "", DefaultJob::only_one));
  }
  for (const std::string& reference : options.jobs) {
    const nlohmann::json& known = jobs.meant_by(reference);
    const nlohmann::json job = found_job(client, known, reference, DefaultJob::only_one);
    const std::string meant = meant_by_name(known, reference, wire::get_string(job, "job"));
    if (!meant.empty()) context.note(meant);
    if (std::find(chosen.begin(), chosen.end(), job) == chosen.end()) chosen.push_back(job);
  }
  for (const nlohmann::json& job : chosen) {
    const std::string id = wire::get_string(job, "job");
    if (!job.at("state").is_null() && !job_ended(wire::get_string(job, "state"))) {
      throw Error(ErrorCode::conflict, id + " is " + wire::get_string(job, "state"))
          .with_hint("dtrain stop" + context.cluster_option() + " " + id + " first");
    }
  }
  if (!options.yes) {
    std::vector<std::string> ids;
    for (const nlohmann::json& job : chosen) ids.push_back(wire::get_string(job, "job"));
    std::string list;
    for (const std::string& id : ids) list += (list.empty() ? "" : ", ") + id;
    const auto sure = context.ask("Remove " + list + " with logs and checkpoints?");
    if (sure && !*sure) {
      context.note("left as it is");
      return 1;
    }
  }
  nlohmann::json removed = nlohmann::json::array();
  for (const nlohmann::json& job : chosen) {
    const std::string id = wire::get_string(job, "job");
    client.remove(job_target(id));
    removed.push_back(id);
    if (!context.globals.json && !context.globals.quiet) context.print("removed " + id + "\n");
  }
  if (context.globals.json) context.print_json({{"removed", removed}});
  return 0;
}

}  // namespace

Verb add_rm(CLI::App& root) {
  auto options = std::make_shared<RmFlags>();
  CLI::App* app = add_verb(
      root, "rm", "Forget jobs that have ended: records, logs, checkpoints in the head's storage",
      "  dtrain rm mnist-k3x7qa\n");
  app->add_option("jobs", options->jobs, "Ids, names (the newest of each) or beginnings of ids")
      ->type_name("JOB...");
  app->add_flag("-y,--yes", options->yes, "Do not ask (without a terminal nothing is asked)");
  return {app, [options](Context& context) { return run_rm(context, *options); }, std::nullopt};
}

}  // namespace dtrain::cli
