#include "launcher/provider/ssh.hpp"

#include <algorithm>
#include <utility>

#include "launcher/remote/ssh/transport.hpp"

namespace dtrain {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kReachLimit{30000};

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
    Machine machine;
    machine.node = host.node;
    machine.address = host.address.empty() ? host.host : host.address;
    machine.external_address = host.host;
    machine.host = host;
    machine.head = machines.empty();
    machines.push_back(std::move(machine));
  }
  return machines;
}

void SshProvider::create(const std::vector<Request>& requests, const OutcomeSink& tell) {
  const std::vector<Machine> there = list();
  for (const Request& request : requests) {
    for (const NodeId& node : request.nodes) {
      const auto found = std::find_if(there.begin(), there.end(),
                                      [&](const Machine& each) { return each.node == node; });
      MachineOutcome outcome;
      if (found != there.end()) {
        outcome.machine = *found;
      } else {
        outcome.machine.node = node;
        outcome.machine.state = MachineState::gone;
        outcome.error =
            Error(ErrorCode::not_found, "no host of provider ssh is node " + node.str());
      }
      tell(outcome);
    }
  }
}

void SshProvider::release(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  for (const Machine& machine : machines) tell({machine, std::nullopt});
}

std::shared_ptr<SshConnection> SshProvider::connect(const HostSpec& host, const SshReach& way) {
  const Key key{host.node, way.key_name};
  std::shared_ptr<Held> held;
  {
    const std::lock_guard lock(mutex_);
    auto& found = held_[key];
    if (!found) found = std::make_shared<Held>();
    held = found;
  }
  const std::lock_guard lock(held->connecting);
  if (!held->connection || !held->connection->alive()) {
    if (held->failure) throw *held->failure;
    try {
      held->connection = connect_anew(host, way);
    } catch (const Error& error) {
      if (!held->connection) held->failure = error;
      throw;
    }
    const std::lock_guard also(mutex_);
    connected_[key] = held->connection;
  }
  return held->connection;
}

std::shared_ptr<SshConnection> SshProvider::connect_anew(const HostSpec& host,
                                                         const SshReach& way) {
  const auto patience = access_.reach_limit ? access_.reach_limit : way.patience;
  SshOptions how;
  how.known_hosts = state_ / "known_hosts";
  how.accept_new = access_.accept_new_host_keys;
  how.key_name = way.key_name;
  how.is_patient = patience.has_value();
  how.deadline = patience.value_or(kReachLimit);
  how.shared = access_.ssh;
  how.stop = access_.stop;
  how.warn = access_.warn;
  if (!access_.reaching) return reach_anew(host, way, how);

  // Of all ways to this host together.
  const auto begun = std::chrono::steady_clock::now();
  const auto until = begun + how.deadline;
  int tries = 0;
  how.on_try = [&](ReachTry at) {
    at.tries = at.tries > 0 ? ++tries : tries;
    at.begun = begun;
    at.until = until;
    access_.reaching(host.node, at);
  };
  how.on_try({"no answer yet", 0, begun, until});
  const std::shared_ptr<void> over(nullptr,
                                   [&](void*) { access_.reaching(host.node, std::nullopt); });
  return reach_anew(host, way, how);
}

std::shared_ptr<SshConnection> SshProvider::reach_anew(const HostSpec& host, const SshReach& way,
                                                       SshOptions how) {
  const SshHost there = ssh_host_of(host);
  if (way.first != nullptr) {
    const auto via = connect(*way.first, {.key_name = way.first_key_name});
    return SshConnection::connect_through(via, there, how);
  }
  const bool has_way = !there.proxy_command.empty() || !there.jumps.empty();
  const bool is_head = !hosts_.empty() && hosts_.front().node == host.node;
  if (has_way || is_head || hosts_.empty()) return SshConnection::connect(there, how);
  const auto until = std::chrono::steady_clock::now() + how.deadline;
  // Half of the time: it may also be reached through the head.
  how.deadline /= 2;
  try {
    return SshConnection::connect(there, how);
  } catch (Error& direct) {
    if (!may_be_the_way(direct) || access_.stop.stop_requested()) throw;
    SshHost from_head = there;
    if (!host.address.empty()) from_head.host = host.address;
    try {
      const auto head = connect(hosts_.front());
      how.deadline =
          std::max(milliseconds(0),
                   std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now()));
      return SshConnection::connect_through(head, from_head, how);
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
    throw Error(ErrorCode::not_found,
                "how ssh reaches " + machine.node.str() + " is not known here");
  }
  return std::make_unique<SshTransport>(connect(*machine.host));
}

std::unique_ptr<Transport> SshProvider::reach(const HostSpec& host, const SshReach& how) {
  return std::make_unique<SshTransport>(connect(host, how));
}

std::unique_ptr<Transport> SshProvider::reach_behind(const Machine& first, const HostSpec& host) {
  const auto via = connect(*first.host);
  return std::make_unique<SshTransport>(
      connect(host, {.key_name = via->settings().key_name(), .first = &*first.host}));
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
