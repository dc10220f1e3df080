#include <filesystem>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/bring_up.hpp"
#include "cli/command_words.hpp"
#include "cli/context.hpp"
#include "cli/follow.hpp"
#include "cli/forward.hpp"
#include "cli/job_cluster.hpp"
#include "cli/job_flags.hpp"
#include "cli/jobs.hpp"
#include "cli/origin.hpp"
#include "cli/ray.hpp"
#include "cli/sending.hpp"
#include "cli/signals.hpp"
#include "cli/torchrun_flags.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/spec/yaml.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

// An old job's checkpoints are taken over before the answer: where they cannot be linked, copied.
constexpr auto kTakingOver = std::chrono::minutes(10);

struct SubmitFlags {
  std::vector<std::string> files;
  bool detach = false;
  bool dry_run = false;
  bool wait = false;
  bool local = false;
  bool start = false;
  bool stop = false;
  bool yes = false;
  std::string on;      // a cluster YAML; empty: not given
  std::string output;  // where --on and --stop bring results; empty: a folder named by the job
  std::vector<std::string> after;  // as typed: names, ids or beginnings of ids
  bool no_prefix = false;
  std::vector<int> ports;
  JobFlags flags;
  OriginFlags origin;
  TorchrunFlags torchrun;
};

// What the words before and after `--` say.
struct Wanted {
  std::string yaml;  // the job's; empty: none
  std::optional<CommandWords> command;
};

// Ray's form: the cluster's YAML first, then the program and its arguments.
CommandWords take_ray_form(Context& context, const SubmitFlags& options) {
  const std::string& yaml = options.files.front();
  const std::vector<std::string> words(options.files.begin() + 1, options.files.end());
  std::optional<CommandWords> command = command_words(context.tail, words);
  if (!command) {
    throw Error(ErrorCode::usage, yaml + " is a cluster YAML, and no program is given")
        .with_hint("dtrain submit " + yaml + " -- PROGRAM ARGS");
  }
  const ClusterSpec spec = read_cluster_yaml(yaml, process_environment()).spec;
  // This machine costs nothing to bring up; for others that is asked for.
  const bool start = options.start || traits_of(spec.provider.kind).here;
  choose_and_start(context, yaml, start);
  // One word that is a file is Ray's script, and no line for the shell.
  std::error_code none;
  command->shell = command->shell && !fs::is_regular_file(words.front(), none);
  // Ray runs a script by Python; a program of the current folder needs no ./ there.
  if (!command->shell) command->words = started_words(std::move(command->words));
  return *command;
}

Wanted wanted(Context& context, const SubmitFlags& options) {
  const std::vector<std::string>& files = options.files;
  if (files.empty()) {
    Wanted command{"", command_words(context.tail, {})};
    if (command.command || !options.origin.resume.empty()) return command;
    throw Error(ErrorCode::usage, "what is to be run?")
        .with_hint("dtrain submit JOB.yaml, or dtrain submit -- PROGRAM ARGS");
  }
  const std::string& first = files.front();
  const bool there = is_file(first);
  if (!there && files.size() == 1 && is_shell_line(first)) {
    return {"", command_words(context.tail, files)};
  }
  if (!there || looks_like_program(first)) {
    throw Error(there ? ErrorCode::usage : ErrorCode::not_found,
                there ? first + " is a program, and no job YAML" : "there is no file " + first)
        .with_hint("to run a program: dtrain submit -- " + shell_join(started_words(files)));
  }
  if (looks_like_cluster_yaml(first)) {
    if (options.on.empty()) return {"", take_ray_form(context, options)};
    throw Error(ErrorCode::usage, first + " is a cluster YAML, and --on names one already");
  }
  const std::vector<std::string> words(files.begin() + 1, files.end());
  if (!words.empty() && (words.size() > 1 || !is_shell_line(words.front()))) {
    throw Error(ErrorCode::usage, "too many arguments: " + words.front())
        .with_hint("a program's arguments come after --: dtrain submit " + shell_quote(first) +
                   " -- " + shell_join(started_words(words)));
  }
  return {first, command_words(context.tail, words)};
}

JobSpec make_spec(const Context& context, const SubmitFlags& options, const Wanted& what,
                  const std::optional<ResumedJob>& resumed) {
  JobSpec spec;
  if (resumed) spec = resumed->spec;
  if (!what.yaml.empty()) {
    Read<JobSpec> read = read_job_yaml(what.yaml, process_environment());
    for (const Warning& warning : read.warnings) {
      context.note(warning.location.str() + ": " + warning.message);
    }
    spec = std::move(read.spec);
    if (resumed) {
      spec.resumes = resumed->id;
      spec.start = resumed->spec.start;
    }
  }
  apply_job_flags(spec, options.flags, what.command, here(), process_environment());
  std::vector<Error> problems = validate(spec);
  if (!problems.empty()) throw SpecError(std::move(problems));
  // A YAML or --workdir means the files as they are now.
  if (resumed && options.files.empty() && !options.flags.workdir) {
    keep_content_if_same(spec, resumed->spec);
  } else {
    spec.content.reset();
  }
  return spec;
}

// In the end; with --on unless the cluster is one that stays.
bool gives_back(const SubmitFlags& options) {
  return options.stop || !options.on.empty();
}

void check_flags(const SubmitFlags& options) {
  const OriginFlags& origin = options.origin;
  if (!origin.resume.empty() && !origin.from_checkpoint.empty()) {
    throw Error(ErrorCode::usage,
                "--resume goes on from the job's own newest checkpoint, "
                "--from-checkpoint begins a new one: one of them");
  }
  const std::string flag = options.on.empty() ? "--stop" : "--on";
  if (gives_back(options) && options.detach) {
    throw Error(ErrorCode::usage, "with --detach nobody waits to do what " + flag + " says")
        .with_hint("dtrain up CLUSTER.yaml, dtrain submit -d, and dtrain down in the end");
  }
  if (!options.output.empty() && !gives_back(options)) {
    throw Error(ErrorCode::usage, "--output is where --on and --stop bring the job's results")
        .with_hint("dtrain pull JOB -o " + shell_quote(options.output));
  }
  if (options.on.empty()) return;
  if (options.local) throw Error(ErrorCode::usage, "--on and --local exclude each other");
  if (options.dry_run) {
    throw Error(ErrorCode::usage, "only a cluster that is up can say whether a job would fit")
        .with_hint("dtrain up --dry-run " + shell_quote(options.on) + " shows what it would make");
  }
}

struct Queued {
  JobSpec spec;
  nlohmann::json answer;
};

// Reads what is wanted, brings up where it is to run, and submits it there. `ending` begins when a
// cluster is up that is to be given back.
Queued queue_job(Context& context, const SubmitFlags& options, JobCluster& job_cluster,
                 std::optional<EndingSignals>& ending) {
  const OriginFlags& origin = options.origin;
  const Wanted what = wanted(context, options);
  const auto start = [&] {
    if (options.local) use_local(context);
    if (!options.on.empty()) job_cluster.start(options.on, options.yes);
    if (gives_back(options)) ending.emplace();
  };
  const auto stop = [&] { return ending ? ending->token() : std::stop_token(); };
  std::optional<ResumedJob> resumed;
  if (!origin.resume.empty()) {
    start();
    resumed = job_to_resume(context, context.client(stop()), origin.resume);
  }
  Queued queued{make_spec(context, options, what, resumed), {}};
  const std::map<std::string, std::string> secrets =
      read_secrets(queued.spec, process_environment());
  if (!origin.from_checkpoint.empty()) {
    queued.spec.start = start_from_folder(origin.from_checkpoint, here());
  }
  if (!options.on.empty() && !resumed) {
    JobSpec spec = queued.spec;
    spec.after = options.after;
    check_before_up(spec, options.on);
  }
  if (!resumed) start();
  const wire::ApiClient client = context.client(stop());
  for (const std::string& reference : options.after) {
    queued.spec.after.push_back(
        wire::get_string(find_job(client, reference, DefaultJob::newest), "job"));
  }
  if (!origin.from_checkpoint.empty() && !queued.spec.start) {
    queued.spec.start = start_from_job(client, origin.from_checkpoint, here());
  }
  nlohmann::json request = {{"submission_id", random_hex(16)},
                            {"secrets", secrets},
                            {"dry_run", options.dry_run},
                            {"wait", options.wait}};
  const bool takes_over = !queued.spec.resumes.empty() || queued.spec.start;
  queued.answer = send_job(context, client, queued.spec,
                           {"/v1/jobs", takes_over ? kTakingOver : wire::ApiClient::kLimit,
                            [&](const JobSpec& spec) {
                              request["spec"] = to_json(spec);
                              return request;
                            },
                            stop()});
  return queued;
}

FollowResult follow_job(const Context& context, const SubmitFlags& options, const JobSpec& spec,
                        const std::string& job) {
  FollowOptions follow_options;
  follow_options.job = job;
  const bool one = spec.nnodes.max == 1 && spec.nproc_per_node.kind == ProcsKind::number &&
                   spec.nproc_per_node.number == 1;
  follow_options.prefix = !one && !options.no_prefix;
  follow_options.setup = spec.setup.empty() ? SetupOutput::none : SetupOutput::too;
  const auto forwarding = forward_ports(context, options.ports);
  return follow(context, context.client(), follow_options);
}

int run_submit(Context& context, const SubmitFlags& options) {
  heed_torchrun_flags(context, options.torchrun);
  check_flags(options);
  JobCluster job_cluster(context);
  std::optional<EndingSignals> ending;
  int signal = 0;  // that came meanwhile
  const auto take_signal = [&] {
    if (ending) signal = ending->end();
  };
  const auto stays = [&] {
    context.warn("cluster " + context.cluster() + " is not given back: dtrain down -c " +
                 context.cluster());
  };
  Queued queued;
  try {
    queued = queue_job(context, options, job_cluster, ending);
    take_signal();
  } catch (const Error&) {
    take_signal();
    const bool leaves_it = options.stop && !job_cluster.is_temporary();
    job_cluster.give_up();
    if (signal == 0) throw;
    const Error stopped(ErrorCode::failed, "stopped before the head said that it has the job");
    if (context.globals.json) {
      context.print_json(error_json(stopped));
    } else {
      context.warn(stopped.message());
    }
    if (leaves_it) stays();
    return 128 + signal;
  }
  const nlohmann::json& answer = queued.answer;
  if (options.dry_run) return show_plan(context, queued.spec.name, answer);

  const std::string job = wire::get_string(answer, "job");
  if (options.detach) {
    if (context.globals.json) {
      context.print_json(answer);
    } else {
      context.print(job + "\n");
      context.note("follow it: dtrain logs -f" + context.cluster_option() + " " + job);
    }
    return 0;
  }
  if (context.globals.json) {
    nlohmann::json submitted = answer;
    submitted["type"] = "submitted";
    context.print_json(submitted);
  }
  FollowResult result;
  try {
    result = signal != 0 ? FollowResult{.state = text_or(answer, "state"), .interrupted = signal}
                         : follow_job(context, options, queued.spec, job);
  } catch (const Error&) {
    if (job_cluster.is_temporary()) stays();
    throw;
  }
  ending.emplace();  // a head that is slow to say the cause is not waited for in silence
  const int code = finish_following(context, job, result, ending->token());
  if (!options.stop && !job_cluster.is_temporary()) return code;
  if (result.interrupted != 0) {
    stays();
    return code;
  }
  const int given_back = give_back(context, job, options.output, *ending);
  return code != 0 ? code : given_back;
}

}  // namespace

Verb add_submit(CLI::App& root) {
  auto options = std::make_shared<SubmitFlags>();
  CLI::App* app = add_verb(
      root, "submit", "Queue a job and follow it to its end",
      "  dtrain submit train_job.yaml\n"
      "  dtrain submit train_job.yaml --max-restarts 3 -d\n"
      "  dtrain submit --local --nproc-per-node 2 -- ./train --epochs 3\n"
      "  dtrain submit train_job.yaml --dry-run     would it fit, where, why not\n"
      "  dtrain submit --resume mnist --timeout-s 7200   go on with a job that ended\n"
      "  dtrain submit train_job.yaml --from-checkpoint mnist:3   a warm start\n"
      "  dtrain submit 'make && ./train'            one argument goes to the shell\n"
      "  dtrain submit cluster.yaml -- ./train --epochs 3   as Ray writes it\n"
      "  dtrain submit --on slurm.yaml train_job.yaml   up, the job, its results here, down\n"
      "Exit code: 0 succeeded, 1 failed, 3 stopped, 130 detached by Ctrl-C (the job goes on).\n");
  app->add_option("file", options->files, "The job YAML; a program comes after --")
      ->type_name("JOB.yaml");
  app->add_flag("-d,--detach", options->detach, "Print the job's id and do not follow");
  app->add_flag("-n,--dry-run", options->dry_run, "Only say whether, where and when it would run");
  app->add_flag("--wait", options->wait,
                "Queue it though it can never run on the nodes that there are: others will come");
  app->add_option("--after", options->after, "Start when that job has succeeded; again for more")
      ->type_name("JOB")
      ->allow_extra_args(false);
  app->add_flag("--local", options->local, "On this machine; brings its cluster up if it is not");
  app->add_flag("--start", options->start, "Bring the cluster of a cluster YAML up first");
  app->add_flag("--stop", options->stop,
                "When the job has ended, bring its results here and take the cluster down");
  app->add_option(
         "--on", options->on,
         "Bring this cluster up for the job; when it has ended bring its results here, and "
         "give back what was not up before")
      ->type_name("CLUSTER.yaml");
  app->add_option("-o,--output", options->output,
                  "Where --on and --stop bring results (default: a folder named by the job)")
      ->type_name("DIR");
  app->add_flag("-y,--yes", options->yes, "With --on, ask nothing: as in dtrain up -y");
  add_port_forward(*app, options->ports);
  add_ray_flags(*app);
  app->add_flag("--no-prefix", options->no_prefix, "No [RANK] before the ranks' lines");
  add_origin_flags(*app, options->origin);
  add_job_flags(*app, options->flags);
  add_torchrun_flags(*app, options->torchrun);
  return {app, [options](Context& context) { return run_submit(context, *options); }, std::nullopt};
}

}  // namespace dtrain::cli
