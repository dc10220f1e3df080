#include "launcher/provider/ssh.hpp"

#include <utility>

#include "launcher/remote/ssh/transport.hpp"

namespace dtrain {
namespace {

constexpr std::chrono::seconds kLoginLimit{60};
// A host that may also be reached through the head is not waited for so long.
constexpr std::chrono::seconds kDirectLimit{15};

bool may_be_the_way(const Error& error) {
  return error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout;
}

}  // namespace

SshHost ssh_host_of(const HostSpec& host) {
  SshHost there;
  there.host = host.host;
  there.port = host.ssh_port;
  there.user = host.ssh_user;
  there.identity = host.ssh_private_key;
  there.proxy_command = host.ssh_proxy_command;
  for (const std::string& jump : host.ssh_proxy_jump) there.jumps.push_back(ssh::parse_host(jump));
  return there;
}

SshProvider::SshProvider(std::vector<HostSpec> hosts, fs::path state, Access access)
    : hosts_(std::move(hosts)), state_(std::move(state)), access_(std::move(access)) {
  if (!access_.ssh) access_.ssh = std::make_shared<SshShared>();
}

std::vector<Machine> SshProvider::list() {
  std::vector<Machine> machines;
  for (const HostSpec& host : hosts_) {
    machines.push_back({host.node, host.address.empty() ? host.host : host.address, {}, host});
  }
  return machines;
}

std::vector<NodeOutcome> SshProvider::create(const std::vector<NodeId>& nodes) {
  std::vector<NodeOutcome> outcomes;
  for (const NodeId& node : nodes) outcomes.push_back({node, std::nullopt});
  return outcomes;
}

std::vector<NodeOutcome> SshProvider::release(const std::vector<NodeId>& nodes) {
  return create(nodes);
}

SshOptions SshProvider::options() const {
  SshOptions options;
  options.known_hosts = state_ / "known_hosts";
  options.accept_new = access_.accept_new_host_keys;
  options.deadline = kLoginLimit;
  options.shared = access_.ssh;
  options.stop = access_.stop;
  options.warn = access_.warn;
  return options;
}

std::shared_ptr<SshConnection> SshProvider::connect(const HostSpec& host) {
  std::shared_ptr<Held> held;
  {
    const std::lock_guard lock(mutex_);
    auto& found = held_[host.node];
    if (!found) found = std::make_shared<Held>();
    held = found;
  }
  const std::lock_guard lock(held->connecting);
  if (!held->connection || !held->connection->alive()) {
    held->connection = connect_anew(host);
    const std::lock_guard also(mutex_);
    connected_[host.node] = held->connection;
  }
  return held->connection;
}

std::shared_ptr<SshConnection> SshProvider::connect_anew(const HostSpec& host) {
  const SshHost there = ssh_host_of(host);
  const bool has_way = !there.proxy_command.empty() || !there.jumps.empty();
  const bool is_head = !hosts_.empty() && hosts_.front().node == host.node;
  SshOptions how = options();
  if (has_way || is_head || hosts_.empty()) return SshConnection::connect(there, how);
  how.deadline = kDirectLimit;
  try {
    return SshConnection::connect(there, how);
  } catch (Error& direct) {
    if (!may_be_the_way(direct) || access_.stop.stop_requested()) throw;
    how.deadline = kLoginLimit;
    SshHost from_head = there;
    if (!host.address.empty()) from_head.host = host.address;
    try {
      return SshConnection::connect_through(connect(hosts_.front()), from_head, how);
    } catch (const Error& through) {
      // A refusal behind the head says more than the silence in front of it.
      if (!may_be_the_way(through)) throw;
      direct.with_hint("it was tried through the head too: " + std::string(through.message()));
      throw direct;
    }
  }
}

std::unique_ptr<Transport> SshProvider::reach(const Machine& machine) {
  if (!machine.host) {
    throw Error(ErrorCode::internal, "node " + machine.node.str() + " has no host");
  }
  return std::make_unique<SshTransport>(connect(*machine.host));
}

void SshProvider::hang_up() {
  const std::lock_guard lock(mutex_);
  for (const auto& [node, connection] : connected_) {
    if (const auto alive = connection.lock()) alive->close();
  }
}

std::unique_ptr<Provider> make_ssh_provider(const ClusterSpec& spec, const fs::path& state,
                                            const Access& access) {
  return std::make_unique<SshProvider>(spec.provider.hosts, state, access);
}

}  // namespace dtrain
