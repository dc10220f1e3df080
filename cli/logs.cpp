#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/follow.hpp"
#include "cli/jobs.hpp"
#include "cli/numbers.hpp"
#include "cli/setup_logs.hpp"
#include "launcher/core/error.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

struct LogsFlags {
  std::string job;
  std::string node;
  bool setup = false;
  bool follow = false;
  bool out = false;
  bool err = false;
  bool no_prefix = false;
  std::optional<int> rank;
  std::optional<int> attempt;
  std::optional<int> tail;
};

SetupOutput setup_output(const Context& context, const LogsFlags& options) {
  if (options.setup) return SetupOutput::alone;
  const bool chosen = options.rank || options.out || options.err;
  return options.follow && !chosen && !context.globals.quiet ? SetupOutput::too : SetupOutput::none;
}

int run_logs(Context& context, const LogsFlags& options) {
  if (options.out && options.err) {
    throw Error(ErrorCode::usage, "--stdout and --stderr exclude each other")
        .with_hint("without either, both are shown");
  }
  if (!options.node.empty()) {
    if (!options.setup || !options.job.empty()) {
      throw Error(ErrorCode::usage, "--node goes with --setup alone: what a node's setup wrote")
          .with_hint("dtrain logs --setup --node " + options.node);
    }
    return print_setup_logs(context, options.node);
  }
  if (options.setup && names_node(context, options.job)) {
    return print_setup_logs(context, options.job);
  }
  if (options.setup && (options.rank || options.out || options.err)) {
    throw Error(ErrorCode::usage, "--setup is of no rank and has one stream");
  }
  const wire::ApiClient client = context.client();
  const nlohmann::json job = find_job(client, options.job, DefaultJob::newest);
  FollowOptions how;
  how.job = wire::get_string(job, "job");
  how.follow = options.follow;
  how.states = options.follow;
  how.rank = options.rank;
  how.attempt = options.attempt;
  how.tail = options.tail;
  how.stream = options.out ? "out" : options.err ? "err" : "";
  how.setup = setup_output(context, options);
  how.prefix = !options.no_prefix && !options.rank && number_or(job, "world_size", 1) > 1;
  const FollowResult result = follow(context, client, how);
  if (options.setup && !result.any_output)
    context.note("no setup of " + how.job + " wrote anything");
  if (options.follow || result.interrupted != 0) {
    return finish_following(context, how.job, result);
  }
  return 0;
}

}  // namespace

Verb add_logs(CLI::App& root) {
  auto options = std::make_shared<LogsFlags>();
  CLI::App* app = add_verb(root, "logs", "Show what the ranks of a job wrote",
                           "  dtrain logs                    of the newest job\n"
                           "  dtrain logs -f mnist           follow; Ctrl-C leaves the job alone\n"
                           "  dtrain logs --rank 1 --stderr --tail 50\n"
                           "  dtrain logs --setup            what the job's setup wrote\n"
                           "  dtrain logs --setup --node node-1   what the node's setup wrote\n");
  app->add_option("job", options->job, "Id, name or beginning of an id (default: the newest)")
      ->type_name("JOB");
  app->add_flag("-f,--follow", options->follow,
                "Go on to the job's end; the exit code is by its state");
  app->add_option("--rank", options->rank, "Only this rank, without a prefix")
      ->check(at_least(0))
      ->type_name("R");
  app->add_option("--attempt", options->attempt, "Only this attempt (default: the newest)")
      ->check(at_least(1))
      ->type_name("N");
  app->add_option("--tail", options->tail, "Begin at the last N lines of each stream")
      ->check(at_least(0))
      ->type_name("N");
  app->add_flag("--stdout", options->out, "Only what went to stdout");
  app->add_flag("--stderr", options->err, "Only what went to stderr");
  app->add_flag("--setup", options->setup, "What the job's setup wrote; with --node, the node's");
  app->add_option("--node", options->node, "With --setup: what the setup lists of this node wrote")
      ->type_name("NODE");
  app->add_flag("--no-prefix", options->no_prefix, "No [RANK] before the lines");
  return {app, [options](Context& context) { return run_logs(context, *options); }, std::nullopt};
}

}  // namespace dtrain::cli
