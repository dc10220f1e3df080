#include <charconv>

#include "launcher/core/names.hpp"
#include "launcher/spec/checks.hpp"
#include "launcher/spec/cluster_spec.hpp"
#include "launcher/spec/limits.hpp"

// Hosts that are there already: their names, the words of ssh_proxy_jump, their JSON.
namespace dtrain {

using nlohmann::json;

NodeId node_of_host(std::string_view host) {
  std::string name;
  for (const char c : host) {
    const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '.' || c == '_' || c == '-';
    name += fine ? c : '-';
  }
  while (!name.empty() && (name.front() == '-' || name.front() == '.')) name.erase(0, 1);
  return NodeId(short_name(name));
}

std::optional<SshJump> parse_jump(std::string_view text) {
  SshJump jump;
  const std::size_t at = text.rfind('@');
  if (at != std::string_view::npos) {
    jump.user = std::string(text.substr(0, at));
    if (!spec::valid_user(jump.user)) return std::nullopt;
    text.remove_prefix(at + 1);
  }
  // [address]:port, host:port, or an address of IPv6 alone, which has several colons.
  std::string_view port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    jump.host = std::string(text.substr(1, end - 1));
    const std::string_view rest = text.substr(end + 1);
    if (!rest.empty() && rest.front() != ':') return std::nullopt;
    if (!rest.empty()) port = rest.substr(1);
    if (!rest.empty() && port.empty()) return std::nullopt;
  } else if (const std::size_t colon = text.find(':');
             colon != std::string_view::npos &&
             text.find(':', colon + 1) == std::string_view::npos) {
    jump.host = std::string(text.substr(0, colon));
    port = text.substr(colon + 1);
    if (port.empty()) return std::nullopt;
  } else {
    jump.host = std::string(text);
  }
  if (!spec::valid_host(jump.host)) return std::nullopt;
  if (!port.empty()) {
    int number = 0;
    const auto [end, failed] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (failed != std::errc{} || end != port.data() + port.size() || number < 1 ||
        number > limits::kPort) {
      return std::nullopt;
    }
    jump.port = number;
  }
  return jump;
}

json to_json(const HostSpec& host) {
  return json{{"node", host.node.str()},
              {"host", host.host},
              {"address", host.address},
              {"ssh_port", host.ssh_port ? json(*host.ssh_port) : json()},
              {"ssh_user", host.ssh_user},
              {"ssh_private_key", host.ssh_private_key},
              {"ssh_proxy_command", host.ssh_proxy_command},
              {"ssh_proxy_jump", host.ssh_proxy_jump}};
}

HostSpec host_spec_from_json(const json& value) {
  try {
    HostSpec host;
    host.node = NodeId(value.at("node").get<std::string>());
    host.host = value.at("host").get<std::string>();
    host.address = value.at("address").get<std::string>();
    if (!value.at("ssh_port").is_null()) host.ssh_port = value.at("ssh_port").get<int>();
    host.ssh_user = value.at("ssh_user").get<std::string>();
    host.ssh_private_key = value.at("ssh_private_key").get<std::string>();
    host.ssh_proxy_command = value.at("ssh_proxy_command").get<std::string>();
    host.ssh_proxy_jump = value.at("ssh_proxy_jump").get<std::vector<std::string>>();
    return host;
  } catch (const json::exception& error) {
    throw Error(ErrorCode::invalid, std::string("not a host: ") + error.what());
  }
}

}  // namespace dtrain
