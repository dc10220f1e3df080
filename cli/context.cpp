#include "cli/context.hpp"

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <thread>

#include <nlohmann/json.hpp>

#include "launcher/cluster/processes.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/yaml.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

constexpr std::chrono::seconds kRestartLimit{3};

}  // namespace

std::string Context::cluster() const {
  return choose_cluster(globals.cluster);
}

std::string Context::cluster_option() const {
  const std::string name = cluster();
  return current_cluster() == name ? "" : " -c " + name;
}

wire::ApiClient Context::client() const {
  const std::string name = cluster();
  wire::ApiClient client(head_socket_of(name), name);
  // A head that was killed is back in a moment, if its watch lives: not worth an error.
  const auto until = std::chrono::steady_clock::now() + kRestartLimit;
  while (!client.answers() && living_watch(paths::cluster_state(name)) &&
         std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return client;
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
  write_all(STDERR_FILENO,
            paint("dtrain:", Color::dim, terminal.color_err) + " " + printable(text, true) + "\n");
}

std::optional<bool> Context::ask(const std::string& question) const {
  if (::isatty(STDIN_FILENO) != 1 || !terminal.err) return std::nullopt;
  write_all(STDERR_FILENO, question + " [y/N] ");
  std::string answer;
  if (!std::getline(std::cin, answer)) return false;
  return answer == "y" || answer == "Y" || answer == "yes";
}

void choose_by_yaml(Context& context, const std::string& path) {
  context.globals.cluster = read_cluster_yaml(path, process_environment()).spec.cluster_name;
}

}  // namespace dtrain::cli
