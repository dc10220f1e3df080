#include "launcher/core/address.hpp"
#include "launcher/core/names.hpp"
#include "launcher/spec/checks.hpp"
#include "launcher/spec/cluster_spec.hpp"

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
  const auto parts = parse_destination(text);
  if (!parts || !spec::valid_host(parts->host)) return std::nullopt;
  if (parts->user && !spec::valid_user(*parts->user)) return std::nullopt;
  return SshJump{parts->user.value_or(""), parts->host, parts->port};
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
