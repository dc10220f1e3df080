#pragma once

#include "launcher/spec/cluster_spec.hpp"
#include "launcher/wire/fields.hpp"

// How a host is written and read.
namespace dtrain {

void fields(wire::Is<HostSpec> auto& m, auto&& f) {
  f("node", wire::any_id(m.node), "host", m.host, "address", m.address, "ssh_port", m.ssh_port,
    "ssh_user", m.ssh_user, "ssh_private_key", m.ssh_private_key, "ssh_proxy_command",
    m.ssh_proxy_command, "ssh_proxy_jump", m.ssh_proxy_jump);
}

}  // namespace dtrain
