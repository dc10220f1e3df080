#include "cli/context.hpp"

#include <unistd.h>

#include <iostream>

#include <nlohmann/json.hpp>

#include "launcher/cluster/state.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/yaml.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {

std::string Context::cluster() const {
  return choose_cluster(globals.cluster);
}

std::string Context::cluster_option() const {
  const std::string name = cluster();
  return current_cluster() == name ? "" : " -c " + name;
}

wire::ApiClient Context::client() const {
  const std::string name = cluster();
  return wire::ApiClient(head_socket_of(name), name);
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
