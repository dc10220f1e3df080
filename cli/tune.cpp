#include <filesystem>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command_words.hpp"
#include "cli/context.hpp"
#include "cli/job_flags.hpp"
#include "cli/jobs.hpp"
#include "cli/searches.hpp"
#include "cli/sending.hpp"
#include "cli/torchrun_flags.hpp"
#include "cli/tune_flags.hpp"
#include "cli/tune_follow.hpp"
#include "cli/tune_verbs.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/yaml.hpp"
#include "launcher/tune/search_yaml.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

struct TuneFlags {
  std::vector<std::string> files;
  bool detach = false;
  bool dry_run = false;
  bool wait = false;
  bool local = false;
  JobFlags job;
  SearchFlags search;
  TorchrunFlags torchrun;
};

// What the words before and after `--` say.
struct SearchWords {
  std::string yaml;  // a search's, or a job's; empty: none
  std::optional<CommandWords> command;
};

// By the rule of `submit`.
SearchWords search_words(const Context& context, const TuneFlags& options,
                         const std::vector<std::string>& names_of_verbs) {
  const std::vector<std::string>& files = options.files;
  if (files.empty()) {
    SearchWords command{"", command_words(context.tail, {})};
    if (command.command) return command;
    throw Error(ErrorCode::usage, "what is to be searched?")
        .with_hint(
            "dtrain tune SEARCH.yaml, or dtrain tune --param lr=loguniform:1e-4:1e-1 "
            "--metric NAME --mode max -- PROGRAM --lr {lr}");
  }
  const std::string& first = files.front();
  const bool there = is_file(first);
  if (!there && files.size() == 1 && is_shell_line(first)) {
    return {"", command_words(context.tail, files)};
  }
  if (!there) {
    const auto near = nearest(first, names_of_verbs);
    if (near) {
      throw Error(ErrorCode::usage, "there is no file and no command " + printable(first, false))
          .with_hint("dtrain tune " + *near);
    }
  }
  if (!there || looks_like_program(first)) {
    throw Error(there ? ErrorCode::usage : ErrorCode::not_found,
                there ? first + " is a program, and no search YAML" : "there is no file " + first)
        .with_hint("to run a program: dtrain tune --param … -- " +
                   shell_join(started_words(files)));
  }
  if (looks_like_cluster_yaml(first)) {
    throw Error(ErrorCode::usage, first + " is a cluster YAML")
        .with_hint("dtrain up " + shell_quote(first) + ", and then dtrain tune SEARCH.yaml");
  }
  const std::vector<std::string> words(files.begin() + 1, files.end());
  if (!words.empty() && (words.size() > 1 || !is_shell_line(words.front()))) {
    throw Error(ErrorCode::usage, "too many arguments: " + words.front())
        .with_hint("a program's arguments come after --: dtrain tune " + shell_quote(first) +
                   " -- " + shell_join(started_words(words)));
  }
  return {first, command_words(context.tail, words)};
}

// The spec, its YAML's warnings said.
template <typename Spec>
Spec heed_warnings(const Context& context, Read<Spec> read) {
  for (const Warning& warning : read.warnings) {
    context.note(warning.location.str() + ": " + warning.message);
  }
  return std::move(read.spec);
}

tune::SearchSpec read_search(const Context& context, const TuneFlags& options,
                             const SearchWords& what) {
  const Lookup environment = process_environment();
  tune::SearchSpec spec;
  if (!what.yaml.empty() && tune::looks_like_search_yaml(what.yaml)) {
    spec = heed_warnings(context, tune::read_search_yaml(what.yaml, environment));
  } else if (!what.yaml.empty()) {
    spec.job = heed_warnings(context, read_job_yaml(what.yaml, environment));
  }
  apply_job_flags(spec.job, options.job, what.command, here(), environment);
  return with_search_flags(spec, options.search);
}

// Ids in place of names and beginnings.
void find_named(const wire::ApiClient& client, tune::SearchSpec& spec) {
  for (std::string& reference : spec.warm_start) reference = find_search_id(client, reference);
}

int show_search_plan(const Context& context, const tune::SearchSpec& spec,
                     const nlohmann::json& plan) {
  const int code = show_plan(context, spec.name, plan);
  if (context.globals.json) return code;
  const std::string params = params_line(child(plan, "params"));
  context.print(trials_text(spec.trials()) + (params.empty() ? "" : ", the first with " + params) +
                "\n");
  return code;
}

int run_tune(Context& context, const TuneFlags& options,
             const std::vector<std::string>& names_of_verbs) {
  heed_torchrun_flags(context, options.torchrun);
  tune::SearchSpec spec =
      read_search(context, options, search_words(context, options, names_of_verbs));
  const std::map<std::string, std::string> secrets = read_secrets(spec.job, process_environment());
  if (options.local) use_local(context);
  const wire::ApiClient client = context.client();
  find_named(client, spec);
  nlohmann::json request = {{"submission_id", random_hex(16)},
                            {"secrets", secrets},
                            {"dry_run", options.dry_run},
                            {"wait", options.wait}};
  const Sending sending{"/v1/searches", wire::ApiClient::kLimit, [&](const JobSpec& job) {
                          spec.job = job;
                          request["spec"] = tune::to_json(spec);
                          return request;
                        }};
  const nlohmann::json answer =
      asked_of_searches([&] { return send_job(context, client, spec.job, sending); });
  if (options.dry_run) return show_search_plan(context, spec, answer);

  const std::string search = wire::get_string(answer, "search");
  if (options.detach) {
    if (context.globals.json) {
      context.print_json(answer);
    } else {
      context.print(search + "\n");
      context.note("follow it: dtrain tune status -f" + context.cluster_option() + " " + search);
    }
    return 0;
  }
  if (context.globals.json) {
    nlohmann::json submitted = answer;
    submitted["type"] = "submitted";
    context.print_json(submitted);
  }
  return finish_search(context, search, follow_search(context, context.client(), search));
}

// What stands before a verb is for a new search, and is not passed over silently.
void check_nothing_before(const CLI::App& tune, const CLI::App& verb) {
  for (const CLI::Option* option : tune.get_options()) {
    const bool is_everybodys =
        tune.get_parent()->get_option_no_throw(option->get_name()) != nullptr;
    if (option->count() == 0 || is_everybodys) continue;
    throw Error(
        ErrorCode::usage,
        option->get_name() + " belongs to dtrain tune, not to dtrain tune " + verb.get_name())
        .with_hint("dtrain tune " + verb.get_name() + " --help");
  }
}

}  // namespace

std::vector<Verb> add_tune_verbs(CLI::App& tune) {
  std::vector<Verb> verbs;
  for (const auto add : {add_tune_status, add_tune_list, add_tune_result, add_tune_best,
                         add_tune_plot, add_tune_stop, add_tune_resume, add_tune_rm}) {
    verbs.push_back(add(tune));
  }
  return verbs;
}

void add_search_argument(CLI::App& app, std::string& search) {
  app.add_option("search", search, "Id, name or beginning of an id (default: the newest)")
      ->type_name("SEARCH");
}

Verb add_tune(CLI::App& root) {
  auto options = std::make_shared<TuneFlags>();
  CLI::App* app = add_verb(
      root, "tune", "Search for hyperparameters by trials of a job, and follow it",
      "  dtrain tune search.yaml\n"
      "  dtrain tune search.yaml --num-samples 50 --scheduler asha:max_t=27 -d\n"
      "  dtrain tune --num-samples 30 --param lr=loguniform:1e-4:1e-1 \\\n"
      "      --metric accuracy --mode max -- ./train --lr {lr}\n"
      "  dtrain tune train_job.yaml --param lr=grid_search:0.1:0.01 --metric loss --mode min\n"
      "  dtrain tune search.yaml --dry-run     would a trial fit, where, why not\n"
      "  dtrain tune status -f                 come back to it\n"
      "  dtrain tune best                      and how to train it again\n"
      "Exit code: 0 succeeded, 1 failed, 3 stopped, 130 detached by Ctrl-C (the search goes "
      "on).\n");
  app->require_subcommand(0, 1);
  app->add_option("file", options->files,
                  "The search YAML, or a job's with --param; a program comes after --")
      ->type_name("SEARCH.yaml");
  app->add_flag("-d,--detach", options->detach, "Print the search's id and do not follow");
  app->add_flag("-n,--dry-run", options->dry_run,
                "Only say whether, where and when its first trial would run");
  app->add_flag("--wait", options->wait,
                "Queue it though no trial can ever run on the nodes that there are: others will "
                "come");
  app->add_flag("--local", options->local, "On this machine; brings its cluster up if it is not");
  add_search_flags(*app, options->search);
  add_job_flags(*app, options->job);
  add_torchrun_flags(*app, options->torchrun);
  const std::vector<Verb> verbs = add_tune_verbs(*app);
  return {app,
          [options, verbs, app](Context& context) {
            std::vector<std::string> names;
            for (const Verb& verb : verbs) {
              if (verb.app->parsed()) {
                check_nothing_before(*app, *verb.app);
                return verb.run(context);
              }
              names.push_back(verb.app->get_name());
            }
            return run_tune(context, *options, names);
          },
          std::nullopt};
}

}  // namespace dtrain::cli
