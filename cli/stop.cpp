#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/follow.hpp"
#include "cli/jobs.hpp"
#include "cli/numbers.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

struct StopFlags {
  std::string job;
  bool detach = false;
  std::optional<int> grace_s;
};

int run_stop(Context& context, const StopFlags& options) {
  const wire::ApiClient client = context.client();
  KnownJobs jobs(client);
  const nlohmann::json& known = jobs.meant_by(options.job);
  const nlohmann::json job = found_job(client, known, options.job, DefaultJob::only_running);
  const bool is_known = !text_or(job, "state").empty();
  const std::string id = wire::get_string(job, "job");
  const std::string meant = meant_by_name(known, options.job, id);
  if (!meant.empty()) context.note(meant);
  nlohmann::json body = nlohmann::json::object();
  if (options.grace_s) body["grace_s"] = *options.grace_s;
  nlohmann::json summary = client.post(job_target(id, "/stop"), body);
  if (is_known && !options.detach && !job_ended(text_or(summary, "state"))) {
    FollowOptions how;
    how.job = id;
    how.logs = false;
    Context silent = context;
    silent.globals.quiet = context.globals.quiet || context.globals.json;
    silent.globals.json = false;
    const FollowResult result = follow(silent, client, how);
    if (result.interrupted != 0) {
      context.warn("not waiting any more; " + id + " is being stopped");
      return 128 + result.interrupted;
    }
    summary = find_job(client, id, DefaultJob::newest);
  }
  if (context.globals.json) {
    context.print_json(summary);
  } else if (!context.globals.quiet) {
    context.print(id + " " + text_or(summary, "state") + "\n");
  }
  return 0;
}

}  // namespace

Verb add_stop(CLI::App& root) {
  auto options = std::make_shared<StopFlags>();
  CLI::App* app = add_verb(root, "stop", "Stop a job and wait until none of its processes is left",
                           "  dtrain stop mnist-k3x7qa\n"
                           "  dtrain stop mnist              the newest of that name that runs\n"
                           "  dtrain stop --grace-s 5        the one that runs\n");
  app->add_option("job", options->job,
                  "Id, name (the newest of it that runs) or beginning of an id (default: the one "
                  "that runs, if it is one)")
      ->type_name("JOB");
  app->add_option("--grace-s", options->grace_s,
                  "Seconds from SIGTERM to SIGKILL (default: the job's stop_grace_s)")
      ->check(at_least(0))
      ->type_name("N");
  app->add_flag("-d,--detach", options->detach, "Do not wait for its end");
  return {app, [options](Context& context) { return run_stop(context, *options); }, std::nullopt};
}

}  // namespace dtrain::cli
