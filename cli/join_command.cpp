#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/jobs.hpp"
#include "cli/preparation.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/gzip.hpp"
#include "launcher/remote/ssh/blob.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

struct JoinFlags {
  std::string type;
  std::string node;
  std::int64_t valid_s = 1800;
  std::vector<std::string> addresses;
  bool script = false;
  bool list = false;
  std::string revoke;
};

constexpr std::int64_t kMostValid = std::int64_t{7} * 24 * 3600;  // seconds
// What a terminal takes as one line while nothing edits it (termios(3), canonical mode).
constexpr std::size_t kLineLimit = 4095;

// One line, since a shell that is pasted several runs the first before the last is there.
std::string line_of(std::string script) {
  // What it says of itself nobody reads there.
  if (script.starts_with('#')) script.erase(0, script.find('\n') + 1);
  std::string line = "echo " + ssh::encode_base64(gzip_of(script)) + "|base64 -d|gzip -d|sh";
  if (line.size() > kLineLimit) {
    throw Error(ErrorCode::exhausted, "the command would be " + std::to_string(line.size()) +
                                          " characters, and a terminal takes " +
                                          std::to_string(kLineLimit) + " in a line")
        .with_hint("--script prints it as a file");
  }
  return line;
}

// The head's addresses as this machine knows them; the head adds its own.
std::vector<std::string> known_addresses(const Context& context) {
  std::vector<std::string> all;
  const auto state = load_cluster(context.cluster());
  if (!state) return all;
  const nlohmann::json& provider = child(state->spec, "provider");
  all.push_back(text_or(provider, "head_address"));
  if (!state->nodes.empty()) {
    all.push_back(state->nodes.front().address);
    all.push_back(state->nodes.front().external_address);
  }
  return all;
}

int list(const Context& context, const wire::ApiClient& client) {
  const nlohmann::json answer = client.get("/v1/joins");
  if (context.globals.json) {
    context.print_json(answer);
    return 0;
  }
  std::vector<std::vector<Cell>> rows;
  for (const nlohmann::json& each : child(answer, "joins")) {
    rows.push_back({text_or(each, "node"), text_or(each, "type"), text_or(each, "state"),
                    text_or(each, "valid_until")});
  }
  context.print(rows.empty() ? "no join commands\n"
                             : table({"NODE", "TYPE", "STATE", "VALID UNTIL"}, rows,
                                     context.terminal.color_out));
  return 0;
}

// The first time; later it is `up` that says what nodes are to be.
void prepare_head(const Context& context, const wire::ApiClient& client) {
  if (const auto state = load_cluster(context.cluster())) {
    send_preparation(context, client, cluster_spec_from_json(state->spec));
  } else {
    send_preparation(context, client, ClusterSpec());  // nothing, until an `up` says what
    context.note("the cluster's YAML is not known here: the machine gets no files and no setup " +
                 std::string("commands before a dtrain up from where it is"));
  }
}

nlohmann::json issue(const Context& context, const wire::ApiClient& client,
                     const JoinFlags& options, bool begins) {
  return client.post("/v1/joins", {{"node", options.node},
                                   {"type", options.type},
                                   {"valid_s", options.valid_s},
                                   {"addresses", options.addresses},
                                   {"other_addresses", known_addresses(context)},
                                   {"begins", begins}});
}

int run_join_command(Context& context, const JoinFlags& options) {
  const wire::ApiClient client = context.client();
  if (options.list) return list(context, client);
  if (!options.revoke.empty()) {
    const nlohmann::json answer =
        client.remove("/v1/joins/" + wire::percent_encode(options.revoke));
    if (context.globals.json) {
      context.print_json(answer);
    } else if (!context.globals.quiet) {
      context.print(options.revoke + " " + text_or(answer, "state") + "\n");
      if (!wire::get_bool(answer, "told", true)) {
        context.note(
            "it was not heard from: it ends when it reaches the head again, or by "
            "dtrain-agent leave there");
      }
    }
    return 0;
  }
  if (!has_preparation(client)) {
    // What cannot be is said before gigabytes are sent; and a line's time begins after that.
    const std::string node = text_or(issue(context, client, options, false), "node");
    client.remove("/v1/joins/" + wire::percent_encode(node));
    prepare_head(context, client);
  }
  nlohmann::json answer = issue(context, client, options, true);
  const std::string node = text_or(answer, "node");
  const std::string script = text_or(answer, "script");
  if (context.globals.json) {
    answer["command"] = line_of(script);
    context.print_json(answer);
    return 0;
  }
  context.print(options.script ? script : line_of(script) + "\n");
  context.note("it makes one machine the node " + node + ", within " +
               human_duration(std::chrono::seconds(options.valid_s)) + ", until " +
               text_or(answer, "valid_until") +
               "; whoever has it may do so. Taken back by: dtrain " + "join-command" +
               context.cluster_option() + " --revoke " + node);
  return 0;
}

}  // namespace

Verb add_join_command(CLI::App& root) {
  auto options = std::make_shared<JoinFlags>();
  CLI::App* app =
      add_verb(root, "join-command",
               "Print a line that makes the machine it is pasted on a node; no login is needed",
               "  dtrain join-command                          for one machine, within 30 minutes\n"
               "  dtrain join-command --type gpu --valid-for 2h\n"
               "  dtrain join-command --script > join.sh       as boot data, say\n"
               "  dtrain join-command --list\n"
               "  dtrain join-command --revoke joined-1        also a node that has joined so\n");
  app->add_option("--type", options->type, "What the node is to be, for status")->type_name("TYPE");
  app->add_option("--node", options->node, "The node's name (else joined-1, joined-2 and so on)")
      ->type_name("NODE");
  app->add_option("--valid-for", options->valid_s, "How long it is valid (30m; at most 7d)")
      ->type_name("TIME")
      ->transform(CLI::AsNumberWithUnit(
          std::map<std::string, std::int64_t>{{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}},
          CLI::AsNumberWithUnit::UNIT_REQUIRED, "TIME"))
      ->check(CLI::Range(std::int64_t{1}, kMostValid));
  app->add_option("--address", options->addresses,
                  "One of the head's, to be tried before those that it knows; again for more")
      ->type_name("ADDRESS")
      ->allow_extra_args(false);
  app->add_flag("--script", options->script, "Print the script itself, for a file or boot data");
  CLI::Option* list_flag = app->add_flag("--list", options->list, "Show what was given out");
  app->add_option("--revoke", options->revoke,
                  "Take back what was given for this node; a node that came with it leaves")
      ->type_name("NODE")
      ->excludes(list_flag);
  return {app, [options](Context& context) { return run_join_command(context, *options); },
          std::nullopt};
}

}  // namespace dtrain::cli
