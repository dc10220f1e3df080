#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/render.hpp"
#include "launcher/cluster/door.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/spec/cluster_spec.hpp"
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
  std::string other_cluster() const;  // its name, where it is not the current one; else empty
  // To the head of the chosen cluster; throws Error(unreachable) when it is not up. With a cluster
  // of hosts the first call logs in, and the login is kept. `stop` ends the login and each request.
  wire::ApiClient client(const std::stop_token& stop = {}) const;
  // The same by a way found anew, where the old one may have broken; waits for no head that starts.
  wire::ApiClient new_client(const std::stop_token& stop = {}) const;
  // Who may be asked for passphrases and about host keys: the terminal, or nobody.
  Access access(bool ask = true) const;

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

 private:
  // `stop` ends the login.
  const fs::path& head_socket(const std::string& cluster_name, const std::stop_token& stop) const;

  mutable std::shared_ptr<HeadDoor> door_;
  mutable std::string door_to_;  // the cluster that door_ leads to
  mutable std::shared_ptr<SshShared> ssh_;
};

// A verb: its part of the command line and what it does. `run` gives the exit code or throws Error.
struct Verb {
  CLI::App* app = nullptr;
  std::function<int(Context&)> run;
  // The exit code when `run` throws; absent: by the kind of error.
  std::optional<int> error_code;
  // Whether it has anything for programs to read; --json is an error where it has not.
  bool json = true;
  // The exit code where somebody is not reached, for a verb that can be used when no cluster is up:
  // then it says nothing of that. Absent: by the kind of error.
  std::optional<int> unreachable_code{};
};

Verb add_up(CLI::App& root);
Verb add_down(CLI::App& root);
Verb add_status(CLI::App& root);
Verb add_submit(CLI::App& root);
Verb add_tune(CLI::App& root);
Verb add_logs(CLI::App& root);
Verb add_stop(CLI::App& root);
Verb add_stack(CLI::App& root);
Verb add_drain(CLI::App& root);
Verb add_join_command(CLI::App& root);
Verb add_result(CLI::App& root);
Verb add_plot(CLI::App& root);
Verb add_pull(CLI::App& root);
Verb add_prune(CLI::App& root);
Verb add_doctor(CLI::App& root);
Verb add_rm(CLI::App& root);
Verb add_bundle(CLI::App& root);
Verb add_exec(CLI::App& root);
Verb add_attach(CLI::App& root);
Verb add_forward(CLI::App& root);
Verb add_sync(CLI::App& root);
// Ray's spellings.
Verb add_rsync_up(CLI::App& root);
Verb add_rsync_down(CLI::App& root);
Verb add_get_head_ip(CLI::App& root);
Verb add_get_worker_ips(CLI::App& root);
Verb add_monitor(CLI::App& root);
Verb add_completion(CLI::App& root);
Verb add_man(CLI::App& root);
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

// Whether a positional is a cluster YAML, as Ray's users write it.
bool names_cluster_yaml(const std::string& word);
// Its cluster becomes the chosen one. Where this machine does not know it, the host that the YAML
// calls the head is asked, so that a cluster can be used from any laptop. Gives what the YAML says.
// Throws Error(unreachable) when there is none, unless it `may_be_down`.
ClusterSpec choose_by_yaml(Context& context, const std::string& path, bool may_be_down = false);

}  // namespace dtrain::cli
