#include "agent/node/config.hpp"

#include <unistd.h>

#include <cstdlib>

#include "launcher/core/capture.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/identity.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::node {
namespace {

constexpr std::chrono::seconds kLoginShellLimit{10};
constexpr const char* kBegin = "dtrain-environment-begins-here";
constexpr const char* kEnd = "dtrain-environment-ends-here";

// From SHELL, else from /etc/passwd, read here: a static program cannot ask the name service.
std::string user_shell() {
  const char* shell = std::getenv("SHELL");
  if (shell != nullptr && shell[0] == '/') return shell;
  const auto users = read_file_if_there("/etc/passwd");
  for (const std::string& line : split(users.value_or(""), '\n')) {
    const std::vector<std::string> fields = split(line, ':');
    if (fields.size() == 7 && fields[2] == std::to_string(::geteuid()) && !fields[6].empty()) {
      return fields[6];
    }
  }
  return "/bin/sh";
}

// The environment between the markers, or nothing.
std::optional<std::string> environment_of(const std::vector<std::string>& shell) {
  SpawnOptions options;
  options.argv = shell;
  // One simple command, which every shell reads alike, fish and tcsh too.
  options.argv.push_back(std::string("echo ") + kBegin + "; env -0; echo " + kEnd);
  Captured ran;
  try {
    ran = capture(options, "", kLoginShellLimit);
  } catch (const Error&) {
    return std::nullopt;
  }
  const std::string begin = std::string(kBegin) + "\n";
  const std::size_t from = ran.out.find(begin);
  const std::size_t to = ran.out.rfind(kEnd);
  if (ran.timed_out || from == std::string::npos || to == std::string::npos || to < from) {
    return std::nullopt;
  }
  return ran.out.substr(from + begin.size(), to - from - begin.size());
}

bool of_the_shell(const std::string& entry) {
  for (const char* name : {"_=", "SHLVL=", "PWD=", "OLDPWD="}) {
    if (entry.rfind(name, 0) == 0) return true;
  }
  return entry.find('=') == std::string::npos;
}

// The node's certificate and the CA's.
std::pair<std::string, std::string> two_certificates(const std::string& pems) {
  const std::string begin = "-----BEGIN CERTIFICATE-----";
  const std::size_t first = pems.find(begin);
  const std::size_t second = first == std::string::npos ? first : pems.find(begin, first + 1);
  if (second == std::string::npos) {
    throw Error(ErrorCode::invalid, "two certificates in PEM are wanted: the node's and the CA's");
  }
  return {pems.substr(first, second - first), pems.substr(second)};
}

}  // namespace

NodeConfig read_node_config(const paths::NodeRoot& root) {
  return while_doing("reading " + root.config().string(), [&] {
    const nlohmann::json json = wire::parse_json(read_file(root.config()), "the file");
    NodeConfig config;
    config.cluster = ClusterId(wire::get_string(json, "cluster"));
    config.node = NodeId(wire::get_string(json, "node"));
    config.address = wire::get_string(json, "address", "");
    config.interface = wire::get_string(json, "interface", "");
    const nlohmann::json& head = wire::member(json, "head");
    config.head_file = wire::get_string(head, "file", "");
    if (config.head_file.empty()) {
      config.head_addresses = wire::get_strings(head, "addresses");
      config.head_port = static_cast<int>(wire::get_int(head, "port", 1, 65535));
      config.head_place = wire::get_string(head, "place", "");
    }
    return config;
  });
}

std::optional<HeadPlace> told_place(const fs::path& file) {
  if (file.empty()) return std::nullopt;
  try {
    const auto text = read_file_if_there(file);
    if (!text) return std::nullopt;
    std::vector<std::string> words = split(text->substr(0, text->find('\n')), ' ');
    const auto port = number_from<int>(words.front());
    words.erase(words.begin());
    if (port && *port > 0 && *port <= 65535 && !words.empty()) return HeadPlace{words, *port};
  } catch (const Error&) {  // where it was before is tried
  }
  return std::nullopt;
}

HeadPlace head_place(const NodeConfig& config) {
  if (config.head_file.empty()) {
    return told_place(config.head_place)
        .value_or(HeadPlace{config.head_addresses, config.head_port});
  }
  const nlohmann::json json = wire::parse_json(read_file(config.head_file), config.head_file);
  HeadPlace place;
  place.addresses = {"127.0.0.1"};
  place.port = static_cast<int>(wire::get_int(json, "port", 0, 65535, 0));
  if (place.port == 0) throw Error(ErrorCode::unreachable, "the head has not opened its port yet");
  return place;
}

std::string init_node(const paths::NodeRoot& root, const ClusterId& cluster, const NodeId& node) {
  make_folders(root.identity());
  const fs::path key_file = root.identity() / "key.pem";
  auto key = read_file_if_there(key_file);
  if (!key) {
    key = wire::make_key();
    write_file_atomic(key_file, *key, 0600);
  }
  return wire::make_request(*key, {cluster, wire::PeerName::Role::node, node});
}

void install_identity(const paths::NodeRoot& root, const std::string& pems) {
  const auto [certificate, ca] = two_certificates(pems);
  wire::save_identity(root.identity(), read_file(root.identity() / "key.pem"), certificate, ca);
}

void renew_identity(const paths::NodeRoot& root, const std::string& key_pem,
                    const std::string& pems) {
  const auto [certificate, ca] = two_certificates(pems);
  wire::replace_identity(root.identity(), key_pem, certificate, ca);
}

std::string capture_environment(const paths::NodeRoot& root) {
  std::string warning;
  auto text = environment_of({user_shell(), "-l", "-c"});
  if (!text) {
    warning = "the login shell " + user_shell() + " did not give its environment within " +
              human_duration(kLoginShellLimit) + "; /bin/sh was asked instead";
    text = environment_of({"/bin/sh", "-c"});
  }
  if (!text) throw Error(ErrorCode::failed, "no shell gives its environment");
  std::string kept;
  for (const std::string& entry : split(*text, '\0')) {
    if (!of_the_shell(entry) && !is_mark(entry)) kept += entry + '\0';
  }
  make_folders(root.root);
  write_file_atomic(root.login_env(), kept, 0600);
  return warning;
}

std::vector<std::string> login_environment(const paths::NodeRoot& root) {
  const auto text = read_file_if_there(root.login_env());
  if (!text) return current_environment();
  std::vector<std::string> env;
  for (const std::string& entry : split(*text, '\0')) {
    if (!entry.empty()) env.push_back(entry);
  }
  return env;
}

}  // namespace dtrain::node
