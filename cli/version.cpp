#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/jobs.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/error.hpp"

namespace dtrain::cli {
namespace {

int run_version(Context& context) {
  // Of the head too, if there is one: the two may differ after an update.
  std::string head;
  try {
    const wire::ApiClient client = context.client();
    if (client.answers()) head = text_or(child(client.get("/v1/status"), "cluster"), "version");
  } catch (const Error&) {
  }
  if (context.globals.json) {
    context.print_json({{"version", DTRAIN_VERSION},
                        {"head", head.empty() ? nlohmann::json() : nlohmann::json(head)}});
    return 0;
  }
  context.print(std::string("dtrain ") + DTRAIN_VERSION + "\n");
  if (!head.empty()) context.print("head   " + head + "\n");
  return 0;
}

}  // namespace

Verb add_version(CLI::App& root) {
  CLI::App* app = add_verb(root, "version", "Show the version, and the head's if one is up",
                           "  dtrain version\n");
  return {app, [](Context& context) { return run_version(context); }, std::nullopt};
}

}  // namespace dtrain::cli
