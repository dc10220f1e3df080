#include "launcher/cluster/down.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::cli {
namespace {

struct Options {
  std::string file;
  bool yes = false;
  bool keep_files = false;
};

// What would be ended or lost; empty: nothing that deserves a question.
std::string question_of(const DownSurvey& survey, const std::string& name, bool keep_files,
                        const std::string& option) {
  std::string text;
  if (!survey.running.empty()) {
    text += std::to_string(survey.running.size()) +
            (survey.running.size() == 1 ? " job runs" : " jobs run") + " on " + name + ": " +
            join(survey.running, ", ") + "\n";
  }
  if (survey.checkpoints > 0 && !keep_files) {
    text += std::to_string(survey.checkpoints) +
            (survey.checkpoints == 1 ? " checkpoint (" : " checkpoints (") +
            human_bytes(survey.checkpoint_bytes) + ") would be lost; to keep: dtrain pull" +
            option + " " + survey.checkpoint_jobs.front() + ", or down --keep-files\n";
  }
  return text;
}

int run_down(Context& context, const Options& options) {
  if (!options.file.empty()) choose_by_yaml(context, options.file);
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
  if (!options.yes) {
    const DownSurvey survey = survey_down(name);
    const std::string question =
        question_of(survey, name, options.keep_files, context.cluster_option());
    if (!question.empty()) {
      const auto answer = context.ask(question + "Take " + name + " down?");
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
  DownOptions how;
  how.keep_files = options.keep_files;
  how.say = [&](const std::string& text) { context.note(text); };
  const DownReport report = down(name, how);
  if (context.globals.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const DownRow& row : report.rows) {
      rows.push_back({{"what", row.what},
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
  } else if (!report.was_there) {
    if (!context.globals.quiet) context.print("cluster " + name + " is not up\n");
  } else if (!context.globals.quiet || !report.complete) {
    std::vector<std::vector<Cell>> rows;
    for (const DownRow& row : report.rows) {
      rows.push_back(
          {row.what, row.had, Cell(row.now, row.gone ? Color::green : Color::red), row.note});
    }
    context.print(table({"GIVEN BACK", "HAD", "NOW", ""}, rows, context.terminal.color_out));
  }
  return report.complete ? 0 : 1;
}

}  // namespace

Verb add_down(CLI::App& root) {
  auto options = std::make_shared<Options>();
  CLI::App* app = add_verb(root, "down", "Stop everything, give all nodes back, and show it",
                           "  dtrain down\n"
                           "  dtrain down -y --keep-files\n");
  app->add_option("file", options->file, "The cluster YAML, in place of -c")
      ->type_name("CLUSTER.yaml");
  app->add_flag("-y,--yes", options->yes, "Do not ask, also when jobs run");
  app->add_flag("--keep-files", options->keep_files, "Keep logs and checkpoints of local nodes");
  return {app, [options](Context& context) { return run_down(context, *options); }, std::nullopt};
}

}  // namespace dtrain::cli
