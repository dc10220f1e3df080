#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/render.hpp"
#include "launcher/wire/client.hpp"

namespace CLI {
class App;
}

namespace dtrain::cli {

// What every verb takes.
struct Globals {
  std::string cluster;  // -c; empty: DTRAIN_CLUSTER, else the current one
  bool json = false;
  bool quiet = false;
  bool verbose = false;
};

// What a verb works with.
class Context {
 public:
  Globals globals;
  Terminal terminal;
  // The words after the first `--`; absent without one.
  std::optional<std::vector<std::string>> tail;

  // The name of the chosen cluster; throws Error(unreachable) when there is none.
  std::string cluster() const;
  // " -c NAME" for commands that we propose, empty when NAME is the current cluster.
  std::string cluster_option() const;
  // To the head of the chosen cluster; throws Error(unreachable) when it is not up.
  wire::ApiClient client() const;

  // To stdout at once.
  void print(const std::string& text) const;
  // One JSON document, or one event of a stream, as one line.
  void print_json(const nlohmann::json& json) const;
  // To stderr as "dtrain: text", unless -q or --json.
  void note(const std::string& text) const;
  // To stderr as "dtrain: text" even with -q.
  void warn(const std::string& text) const;
  // Asks on the terminal; absent when there is nobody to ask.
  std::optional<bool> ask(const std::string& question) const;
};

// A verb: its part of the command line and what it does. `run` gives the exit code or throws Error.
struct Verb {
  CLI::App* app = nullptr;
  std::function<int(Context&)> run;
  // The exit code when `run` throws; absent: by the kind of error.
  std::optional<int> error_code;
};

Verb add_up(CLI::App& root);
Verb add_down(CLI::App& root);
Verb add_status(CLI::App& root);
Verb add_submit(CLI::App& root);
Verb add_logs(CLI::App& root);
Verb add_stop(CLI::App& root);
Verb add_result(CLI::App& root);
Verb add_plot(CLI::App& root);
Verb add_pull(CLI::App& root);
Verb add_rm(CLI::App& root);
Verb add_exec(CLI::App& root);
Verb add_attach(CLI::App& root);
Verb add_completion(CLI::App& root);
Verb add_version(CLI::App& root);

// A verb's App with its description and, below its options, an example and more.
CLI::App* add_verb(CLI::App& root, const std::string& name, const std::string& description,
                   const std::string& examples);

// The whole command line; verbs share `globals`.
struct CommandLine {
  CommandLine();
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  std::unique_ptr<CLI::App> app;
  std::vector<Verb> verbs;
  Globals globals;
};

// Everything from argv on; returns the exit code. Throws nothing.
int run(int argc, char** argv);

// A positional that is a cluster YAML (as Ray's users write it): its cluster's name becomes the
// chosen one.
void choose_by_yaml(Context& context, const std::string& path);

}  // namespace dtrain::cli
