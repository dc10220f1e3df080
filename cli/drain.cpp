#include <signal.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/context.hpp"
#include "cli/jobs.hpp"
#include "cli/signals.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

struct DrainFlags {
  std::string node;
  bool undo = false;
  bool detach = false;
};

constexpr int kLookEveryMs = 200;
constexpr std::chrono::seconds kAwayLimit{60};

// The node's entry in the status; null when it has left.
nlohmann::json node_of(const wire::ApiClient& client, const std::string& name) {
  const nlohmann::json status = client.get("/v1/status");
  for (const nlohmann::json& node : child(status, "nodes")) {
    if (text_or(node, "node") == name) return node;
  }
  return nullptr;
}

std::vector<std::string> jobs_on(const nlohmann::json& node) {
  std::vector<std::string> jobs;
  for (const nlohmann::json& job : child(node, "jobs")) {
    if (job.is_string()) jobs.push_back(job.get<std::string>());
  }
  return jobs;
}

int finish(const Context& context, const std::string& name, const std::string& state,
           const std::vector<std::string>& jobs) {
  if (context.globals.json) {
    context.print_json({{"node", name}, {"state", state}, {"jobs", jobs}});
  } else if (!context.globals.quiet) {
    context.print(name + " " + state + "\n");
  }
  return 0;
}

int run_drain(Context& context, const DrainFlags& options) {
  const wire::ApiClient reached = context.client();
  Signals signals({SIGINT, SIGTERM});
  const StopOnSignal stop(signals);
  const wire::ApiClient client = reached.stopped_by(stop.token());
  const std::string back =
      "dtrain drain" + context.cluster_option() + " " + options.node + " --undo";
  nlohmann::json answer;
  try {
    answer = client.post("/v1/nodes/" + wire::percent_encode(options.node) + "/drain",
                         {{"undo", options.undo}});
  } catch (const Error& error) {
    const int number = signals.next();
    if (number == 0 || error.code() != ErrorCode::timeout) throw;
    context.warn("the head has not answered; whether " + options.node +
                 (options.undo ? " is taken back" : " drains") + " is said by dtrain status" +
                 context.cluster_option());
    return 128 + number;
  }
  std::vector<std::string> told;
  std::string state = text_or(answer, "state");
  std::optional<std::chrono::steady_clock::time_point> away_since;  // of the head
  const std::string on =
      options.node + (options.undo ? " was taken back" : " goes on draining; back: " + back);
  const auto given_up = [&](int signal) {
    context.warn("not waiting any more; " + on);
    return 128 + signal;
  };
  while (true) {
    nlohmann::json node;
    try {
      node = node_of(client, options.node);
      away_since.reset();
    } catch (Error& error) {
      if (const int number = signals.next(); number != 0) return given_up(number);
      // A head that is started again: the node goes on draining.
      const auto now = std::chrono::steady_clock::now();
      if (!away_since) away_since = now;
      const bool away =
          error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout;
      if (!away || now - *away_since > kAwayLimit) {
        throw error.with_hint(on);
      }
      if (const int number = signals.wait(kLookEveryMs); number != 0) return given_up(number);
      continue;
    }
    if (!node.is_null()) state = text_or(node, "state");
    const std::vector<std::string> jobs = jobs_on(node);
    if (node.is_null()) return finish(context, options.node, "gone", {});
    if (options.undo || options.detach || state != "draining") {
      if (!options.undo && state != "draining" && state != "drained") {
        throw Error(ErrorCode::failed, options.node + " is " + state + " and not drained" +
                                           (jobs.empty() ? "" : ": " + join(jobs, ", ")))
            .with_hint("dtrain status says more");
      }
      return finish(context, options.node, state, jobs);
    }
    if (jobs != told && !jobs.empty()) {
      context.note(options.node + " gets no new ranks; still there: " + join(jobs, ", "));
      told = jobs;
    }
    if (const int number = signals.wait(kLookEveryMs); number != 0) return given_up(number);
  }
}

}  // namespace

Verb add_drain(CLI::App& root) {
  auto options = std::make_shared<DrainFlags>();
  CLI::App* app =
      add_verb(root, "drain", "Give a node no new ranks and wait until those that run have ended",
               "  dtrain drain node-2            wait; Ctrl-C stops the waiting alone\n"
               "  dtrain drain node-2 -d         do not wait\n"
               "  dtrain drain node-2 --undo     take it back\n");
  app->add_option("node", options->node, "The node")->required()->type_name("NODE");
  app->add_flag("--undo", options->undo, "It gets ranks again");
  app->add_flag("-d,--detach", options->detach, "Do not wait until it is drained");
  return {app, [options](Context& context) { return run_drain(context, *options); }, std::nullopt};
}

}  // namespace dtrain::cli
