#include "cli/context.hpp"

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <thread>

#include <nlohmann/json.hpp>

#include "launcher/cluster/reach_watch.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/own_programs.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/ssh/options.hpp"
#include "launcher/spec/yaml.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

constexpr std::chrono::seconds kRestartLimit{3};

}  // namespace

std::string Context::cluster() const {
  return choose_cluster(globals.cluster);
}

std::string Context::other_cluster() const {
  const std::string name = cluster();
  return current_cluster() == name ? "" : name;
}

std::string Context::cluster_option() const {
  const std::string name = other_cluster();
  return name.empty() ? "" : " -c " + name;
}

const fs::path& Context::head_socket(const std::string& cluster_name,
                                     const std::stop_token& stop) const {
  if (!door_ || door_to_ != cluster_name) {
    Access with = access();
    with.stop = stop;
    door_ = std::make_shared<HeadDoor>(HeadDoor::open(cluster_name, with));
    door_to_ = cluster_name;
  }
  return door_->socket();
}

wire::ApiClient Context::new_client(const std::stop_token& stop) const {
  door_.reset();
  const std::string name = cluster();
  return wire::ApiClient(head_socket(name, stop), name).stopped_by(stop);
}

wire::ApiClient Context::client(const std::stop_token& stop) const {
  const std::string name = cluster();
  wire::ApiClient client = wire::ApiClient(head_socket(name, stop), name).stopped_by(stop);
  // A head that was killed is back in a moment, if its watch lives: not worth an error.
  const auto until = std::chrono::steady_clock::now() + kRestartLimit;
  while (!client.answers() && living_watch(paths::cluster_state(name)) && !stop.stop_requested() &&
         std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return client;
}

Access Context::access(bool ask) const {
  if (!ssh_) ssh_ = std::make_shared<SshShared>(ask ? terminal_prompter() : nullptr);
  Access access;
  access.ssh = ssh_;
  // A copy: what warns may outlive this object's place.
  access.warn = [quiet = globals.quiet || globals.json,
                 color = terminal.color_err](const std::string& text) {
    if (quiet) return;
    write_shown(STDERR_FILENO,
                paint("dtrain:", Color::dim, color) + " " + printable(text, true) + "\n");
  };
  // Whoever shows more of each node watches in its own place.
  const auto watch = std::make_shared<ReachWatch>(
      [warn = access.warn](const NodeProgress& told) { warn(told.node.str() + ": " + told.text); });
  access.reaching = [watch](const NodeId& node, const std::optional<ReachTry>& last) {
    watch->reaching(node, last);
  };
  return access;
}

void Context::print(const std::string& text) const {
  write_all(STDOUT_FILENO, text);
}

void Context::print_json(const nlohmann::json& json) const {
  print(wire::dump(json) + "\n");
}

void Context::note(const std::string& text) const {
  if (!globals.quiet && !globals.json) warn(text);
}

void Context::warn(const std::string& text) const {
  write_shown(STDERR_FILENO, paint("dtrain:", Color::dim, terminal.color_err) + " " +
                                 printable(text, true) + "\n");
}

std::optional<bool> Context::ask(const std::string& question) const {
  if (::isatty(STDIN_FILENO) != 1 || !terminal.err) return std::nullopt;
  write_all(STDERR_FILENO, question + " [y/N] ");
  std::string answer;
  if (!std::getline(std::cin, answer)) return false;
  return answer == "y" || answer == "Y" || answer == "yes";
}

bool names_cluster_yaml(const std::string& word) {
  std::error_code failed;
  return (word.ends_with(".yaml") || word.ends_with(".yml")) && fs::exists(word, failed) &&
         looks_like_cluster_yaml(word);
}

ClusterSpec choose_by_yaml(Context& context, const std::string& path, bool may_be_down) {
  ClusterSpec spec = read_cluster_yaml(path, process_environment()).spec;
  // Ray's --cluster-name: the YAML's cluster by another name.
  if (!context.globals.cluster.empty()) spec.cluster_name = context.globals.cluster;
  context.globals.cluster = spec.cluster_name;
  const char* socket = std::getenv("DTRAIN_HEAD_SOCKET");
  const bool known = load_cluster(spec.cluster_name) || (socket != nullptr && *socket != '\0');
  if (!known && !traits_of(spec.provider.kind).here &&
      !adopt(spec, find_agent(), context.access(), may_be_down) && !may_be_down) {
    throw Error(ErrorCode::unreachable, "cluster " + spec.cluster_name + " is not up")
        .with_hint("dtrain up " + path);
  }
  return spec;
}

}  // namespace dtrain::cli
