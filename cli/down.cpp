#include "launcher/cluster/down.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/bring_up.hpp"
#include "cli/context.hpp"
#include "cli/host_flags.hpp"
#include "cli/node_lines.hpp"
#include "cli/orphans.hpp"
#include "cli/ray.hpp"
#include "cli/signals.hpp"
#include "launcher/cluster/reach_watch.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/own_programs.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/provider.hpp"

namespace dtrain::cli {
namespace {

struct DownFlags {
  std::string file;
  bool yes = false;
  bool keep_files = false;
  bool workers_only = false;
  bool all_orphans = false;
  std::string region;
  bool after_job = false;  // no verb of its own: stdout is the job's, and nobody is asked
  HostFlags hosts;
};

constexpr std::size_t kNamedJobs = 10;
constexpr int kInterrupted = 130;

// What would be ended or lost; empty: nothing that deserves a question.
std::string question_of(const DownSurvey& survey, const std::string& name, const DownFlags& options,
                        const std::string& option) {
  const bool files_stay = options.keep_files || options.workers_only;
  std::string text;
  if (survey.there && !survey.head_answers) {
    text += "the head of " + name + " does not answer: which jobs run is not known\n";
  }
  if (!survey.running.empty()) {
    text += std::to_string(survey.running.size()) +
            (survey.running.size() == 1 ? " job runs" : " jobs run") + " on " + name + ": " +
            join_some(survey.running, kNamedJobs) + "\n";
  }
  if (survey.checkpoints > 0 && !files_stay) {
    const bool one_job = survey.checkpoint_jobs.size() == 1;
    text += std::to_string(survey.checkpoints) +
            (survey.checkpoints == 1 ? " checkpoint (" : " checkpoints (") +
            human_bytes(survey.checkpoint_bytes) + ") that nobody has pulled would be lost, of " +
            join_some(survey.checkpoint_jobs, kNamedJobs) + "; to keep: dtrain pull" + option +
            " " + (one_job ? survey.checkpoint_jobs.front() : "JOB of each") +
            ", or down --keep-files\n";
  }
  if (!survey.checkpoints_unknown.empty() && !files_stay) {
    text += "which checkpoints nobody has pulled is not known: " +
            printable(survey.checkpoints_unknown, false) + "\n";
  }
  return text;
}

// Ctrl-C, or a terminal that is closed, during a `down` of machines ends it between two steps, with
// a word about what is still there; the next one goes on from there. On this machine it ends at
// once, as it always did.
class Interruptible {
 public:
  explicit Interruptible(const std::string& cluster) {
    std::optional<ClusterState> state;
    try {
      state = load_cluster(cluster);
    } catch (const Error&) {  // taken for one of this machine
    }
    if (state && !is_here(state->provider)) signals_.emplace({SIGINT, SIGTERM, SIGHUP});
  }
  std::stop_token token() const { return stop_.get_token(); }

  // Until what is given back is destroyed, a signal says `word` and asks for a stop.
  std::unique_ptr<OnSignal> watch(std::function<void()> word) {
    if (!signals_) return nullptr;
    return std::make_unique<OnSignal>(*signals_, [this, word = std::move(word)] {
      if (word) word();
      stop_.request_stop();
    });
  }
  // While a person is asked it ends all.
  std::unique_ptr<LetThrough> let_through() const {
    return signals_ ? std::make_unique<LetThrough>(*signals_) : nullptr;
  }

 private:
  std::stop_source stop_;
  std::optional<Signals> signals_;
};

// With hosts, what each of them is at is told while it lasts.
DownReport down_with_lines(const Context& context, const std::string& name, ReachWatch& watch,
                           DownOptions& how, Interruptible& interruptible) {
  NodeLines lines(node_lines_form(context), context.terminal, {});
  const auto interrupt =
      interruptible.watch([&] { lines.say("dtrain: stopping; dtrain down goes on from here\n"); });
  how.progress = [&](const NodeProgress& progress) { lines.show(progress); };
  watch.tell(how.progress);
  DownReport report = down(name, how);
  watch.tell({});
  lines.finish();
  return report;
}

// Of the hosts, only which are not reached: there is nothing done yet.
DownSurvey survey_with_lines(const Context& context, const std::string& name, ReachWatch& watch,
                             const DownOptions& how) {
  const NodeLines::Form form = node_lines_form(context);
  NodeLines lines(form == NodeLines::Form::live ? NodeLines::Form::plain : form, context.terminal,
                  {});
  watch.tell([&](const NodeProgress& progress) { lines.show(progress); });
  DownSurvey survey = survey_down(name, how);
  watch.tell({});
  return survey;
}

void print_report(const Context& context, const DownReport& report, bool after_job) {
  if (context.globals.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const DownRow& row : report.rows) {
      rows.push_back({{"node", row.node},
                      {"what", row.what},
                      {"had", row.had},
                      {"now", row.now},
                      {"note", row.note},
                      {"gone", row.gone}});
    }
    context.print_json(
        {{"cluster", report.name},
         {"was_up", report.was_there},
         {"complete", report.complete},
         {"kept", report.kept.empty() ? nlohmann::json() : nlohmann::json(report.kept.string())},
         {"rows", rows}});
    return;
  }
  if (after_job && report.complete) {
    context.note("cluster " + report.name + " is given back");
    return;
  }
  if (context.globals.quiet && report.complete) return;
  if (!report.was_there) {
    context.print("cluster " + report.name + " is not up\n");
    return;
  }
  const bool nodes = std::any_of(report.rows.begin(), report.rows.end(),
                                 [](const DownRow& row) { return !row.node.empty(); });
  std::vector<std::vector<Cell>> rows;
  for (const DownRow& row : report.rows) {
    rows.push_back(
        {row.what, row.had, Cell(row.now, row.gone ? Color::green : Color::red), row.note});
    if (nodes) rows.back().insert(rows.back().begin(), row.node);
  }
  std::vector<std::string> header{"GIVEN BACK", "HAD", "NOW", ""};
  if (nodes) header.insert(header.begin(), "NODE");
  if (after_job) {
    write_all(STDERR_FILENO, table(header, rows, context.terminal.color_err));
  } else {
    context.print(table(header, rows, context.terminal.color_out));
  }
}

// What would be ended or lost keeps it up.
int stays_up(const Context& context, const DownSurvey& survey, const std::string& question) {
  for (const std::string& line : split(question.substr(0, question.size() - 1), '\n')) {
    context.warn(line);
  }
  const std::string name = context.cluster();
  context.warn("cluster " + name + " stays up; to give it back: dtrain down -c " + name);
  // Whoever follows a job that runs gives it back.
  const bool nothing_lost = survey.checkpoints == 0 && survey.checkpoints_unknown.empty();
  return survey.head_answers && nothing_lost ? 0 : 1;
}

int run_down(Context& context, const DownFlags& options) {
  if (options.all_orphans) return take_orphans_away(context, options.region, options.yes);
  DownOptions how;
  if (!options.file.empty()) {
    const ClusterSpec spec = choose_by_yaml(context, options.file, true);
    how.searched = !traits_of(spec.provider.kind).here;
  }
  std::string name;
  try {
    name = context.cluster();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unreachable) throw;
    if (context.globals.json) {
      context.print_json({{"cluster", nullptr},
                          {"was_up", false},
                          {"complete", true},
                          {"rows", nlohmann::json::array()}});
    } else if (!context.globals.quiet) {
      context.print("no cluster is up\n");
    }
    return 0;
  }
  // One of which nothing is known is down already; what stands for the YAML's cluster is not.
  if (options.file.empty() && names_cluster_yaml(name) && !load_cluster(name)) {
    throw Error(ErrorCode::usage, name + " is a cluster YAML, and no cluster of that name is known")
        .with_hint("dtrain down " + shell_quote(name));
  }
  if (options.workers_only) {
    const auto state = load_cluster(name);
    if (state && is_here(state->provider)) {
      throw Error(ErrorCode::usage, "a local cluster has no workers of its own")
          .with_hint("dtrain down takes all of it");
    }
  }
  // Before any thread is started, so that all of them leave the signals to this one.
  Interruptible interruptible(name);
  how.keep_files = options.keep_files;
  how.workers_only = options.workers_only;
  how.say = [&](const std::string& text) { context.note(text); };
  how.agent = find_agent();
  how.access = context.access();
  how.access.stop = interruptible.token();
  options.hosts.apply(how);
  const auto watch = std::make_shared<ReachWatch>(ProgressSink());
  how.access.reaching = [watch](const NodeId& node, const std::optional<ReachTry>& last) {
    watch->reaching(node, last);
  };
  if (!options.yes) {
    DownSurvey survey;
    {
      const auto interrupt = interruptible.watch({});
      survey = survey_with_lines(context, name, *watch, how);
    }
    if (how.access.stop.stop_requested()) {
      const Error stopped(ErrorCode::failed, "stopped; nothing was taken down");
      if (context.globals.json) {
        context.print_json(error_json(stopped));
      } else {
        context.note(stopped.message());
      }
      return kInterrupted;
    }
    how.provider = survey.provider;
    const std::string question = question_of(survey, name, options, context.cluster_option());
    if (!question.empty() && options.after_job) return stays_up(context, survey, question);
    if (!question.empty()) {
      const auto through = interruptible.let_through();
      const auto answer = context.ask(
          question + "Take " + (options.workers_only ? "the workers of " : "") + name + " down?");
      if (!answer) {
        std::string said = join(split(question.substr(0, question.size() - 1), '\n'), "; ");
        throw Error(ErrorCode::conflict, std::move(said))
            .with_hint("dtrain down -y if that is meant");
      }
      if (!*answer) {
        context.note("left as it is");
        return 1;
      }
    }
  }
  const DownReport report = down_with_lines(context, name, *watch, how, interruptible);
  print_report(context, report, options.after_job);
  return report.complete ? 0 : 1;
}

}  // namespace

int take_down(Context& context, bool whatever_is_there) {
  DownFlags options;
  options.yes = whatever_is_there;
  options.after_job = true;
  return run_down(context, options);
}

Verb add_down(CLI::App& root) {
  auto options = std::make_shared<DownFlags>();
  CLI::App* app = add_verb(root, "down", "Stop everything, give all nodes back, and show it",
                           "  dtrain down\n"
                           "  dtrain down -y --keep-files\n"
                           "  dtrain down --all-orphans --region us-west-2\n");
  CLI::Option* file = app->add_option("file", options->file, "The cluster YAML, in place of -c")
                          ->type_name("CLUSTER.yaml");
  app->add_flag("-y,--yes", options->yes, "Do not ask, also when jobs run");
  CLI::Option* keep = app->add_flag("--keep-files", options->keep_files,
                                    "Keep logs and checkpoints there, in kept/");
  CLI::Option* workers =
      app->add_flag("--workers-only", options->workers_only, "Leave the head and what it keeps");
  CLI::Option* orphans =
      app->add_flag("--all-orphans", options->all_orphans,
                    "With aws: what of dtrain's belongs to no cluster that has a head")
          ->excludes(file)
          ->excludes(keep)
          ->excludes(workers);
  CLI::Option* region =
      app->add_option("--region", options->region, "In which region")->needs(orphans);
  orphans->needs(region);
  options->hosts.add(*app);
  add_ray_flags(*app);
  return {.app = app,
          .run = [options](Context& context) { return run_down(context, *options); },
          .unreachable_code = 1};
}

}  // namespace dtrain::cli
