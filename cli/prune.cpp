#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/jobs.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

struct PruneFlags {
  bool dry_run = false;
};

constexpr std::chrono::seconds kLimit{90};  // longer than the head waits for its nodes

int run_prune(Context& context, const PruneFlags& options) {
  const wire::ApiClient client = context.client();
  const nlohmann::json answer = client.post("/v1/prune", {{"dry_run", options.dry_run}}, kLimit);
  bool complete = true;
  std::vector<std::vector<Cell>> rows;
  for (const nlohmann::json& node : child(answer, "nodes")) {
    const std::string name = text_or(node, "node");
    for (const nlohmann::json& item : child(node, "items")) {
      rows.push_back({name, text_or(item, "kind"), std::to_string(number_or(item, "count")),
                      human_bytes(static_cast<std::uint64_t>(number_or(item, "bytes")))});
    }
    const nlohmann::json& error = child(node, "error");
    if (error.is_null()) continue;
    complete = false;
    context.warn(name + ": " + text_or(error, "message"));
  }
  if (context.globals.json) {
    context.print_json(answer);
  } else if (!context.globals.quiet) {
    if (!rows.empty()) {
      context.print(table({"NODE", options.dry_run ? "WOULD GO" : "GONE", "FILES", "SIZE"}, rows,
                          context.terminal.color_out));
    }
    const std::string bytes =
        human_bytes(static_cast<std::uint64_t>(number_or(answer, "bytes", 0)));
    context.print(bytes + (options.dry_run ? " would come back\n" : " came back\n"));
  }
  return complete ? 0 : 1;
}

}  // namespace

Verb add_prune(CLI::App& root) {
  auto options = std::make_shared<PruneFlags>();
  CLI::App* app = add_verb(root, "prune",
                           "Give disk back on all nodes: files of jobs that no job needs any more",
                           "  dtrain prune --dry-run         what would go, by node\n"
                           "  dtrain prune\n"
                           "  dtrain rm mnist-k3x7qa         a job, with logs and checkpoints\n");
  app->add_flag("-n,--dry-run", options->dry_run, "Show what would go, and leave it");
  return {app, [options](Context& context) { return run_prune(context, *options); }, std::nullopt};
}

}  // namespace dtrain::cli
