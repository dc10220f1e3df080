#include "launcher/core/address.hpp"
#include "launcher/core/names.hpp"
#include "launcher/spec/checks.hpp"
#include "launcher/spec/cluster_spec.hpp"

// Hosts that are there already: their names, and the words of ssh_proxy_jump.
namespace dtrain {

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

}  // namespace dtrain
