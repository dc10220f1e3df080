#include "cli/setup_logs.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/jobs.hpp"
#include "launcher/cluster/node_setup.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/own_programs.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using Logs = std::vector<SetupLog>;

// Absent when the head is not there or has no connection to the node.
std::optional<Logs> ask_head(const Context& context, const std::string& node) {
  nlohmann::json answer;
  try {
    answer = context.client().get("/v1/nodes/" + wire::percent_encode(node) + "/setup");
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unreachable || error.code() == ErrorCode::not_found ||
        error.code() == ErrorCode::timeout) {
      return std::nullopt;
    }
    throw;
  }
  Logs logs;
  for (const nlohmann::json& log : child(answer, "logs")) {
    logs.push_back({text_or(log, "name"), text_or(log, "text")});
  }
  return logs;
}

Logs read_there(const Context& context, const std::string& node) {
  const std::string name = context.cluster();
  const auto state = load_cluster(name);
  const auto machine =
      !state ? std::vector<Machine>::const_iterator{}
             : std::find_if(state->nodes.begin(), state->nodes.end(),
                            [&](const Machine& each) { return each.node.str() == node; });
  if (!state || machine == state->nodes.end() || is_here(state->provider)) {
    throw Error(ErrorCode::not_found, "cluster " + name + " has no node " + node + " to ask")
        .with_hint("dtrain status lists the nodes");
  }
  return read_setup_logs(*state, *machine, find_agent(), context.access());
}

}  // namespace

bool names_node(const Context& context, const std::string& word) {
  if (word.empty()) return false;
  if (const auto state = load_cluster(context.cluster())) {
    for (const Machine& machine : state->nodes) {
      if (machine.node.str() == word) return true;
    }
  }
  const nlohmann::json status = context.client().get("/v1/status");
  for (const nlohmann::json& node : child(status, "nodes")) {
    if (text_or(node, "node") == word) return true;
  }
  return false;
}

int print_setup_logs(const Context& context, const std::string& node) {
  std::optional<Logs> logs = ask_head(context, node);
  if (!logs) logs = read_there(context, node);
  if (context.globals.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const SetupLog& log : *logs) all.push_back({{"list", log.list}, {"text", log.text}});
    context.print_json({{"node", node}, {"logs", std::move(all)}});
    return 0;
  }
  if (logs->empty()) context.note("no setup commands have run on " + node);
  for (const SetupLog& log : *logs) {
    if (logs->size() > 1) context.note(log.list + ":");
    context.print(log.text + (log.text.empty() || log.text.back() == '\n' ? "" : "\n"));
  }
  return 0;
}

}  // namespace dtrain::cli
