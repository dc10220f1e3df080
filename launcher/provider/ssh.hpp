#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/provider/provider.hpp"
#include "launcher/remote/ssh/connection.hpp"

namespace dtrain {

// How a host is reached, besides what HostSpec says of it.
struct SshReach {
  std::string key_name;             // under which its key is known; empty: its own name
  const HostSpec* first = nullptr;  // the host behind which it is; null: none
  std::string first_key_name;       // that one's
  // It may be starting: for so long it is tried, whatever keeps it from being reached, unless
  // Access says for how long.
  std::optional<std::chrono::milliseconds> patience;
};

// Machines that are there already. Nothing is made and nothing given back: create() tells them as
// they are, release() leaves them. Thread-safe; one connection to a host serves all that reach it.
class SshProvider final : public Provider {
 public:
  // The head first. `state` is the cluster's folder here: pinned host keys are kept in it.
  SshProvider(std::vector<HostSpec> hosts, fs::path state, Access access);

  std::vector<Machine> list() override;
  void create(const std::vector<Request>& requests, const OutcomeSink& tell) override;
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell) override;
  // A host that this machine cannot reach is tried through the head before it fails.
  std::unique_ptr<Transport> reach(const Machine& machine) override;
  std::unique_ptr<Transport> reach(const HostSpec& host, const SshReach& how);
  // One that has the same name for us as `first`, behind which it is reached: its key is known
  // under that name.
  std::unique_ptr<Transport> reach_behind(const Machine& first, const HostSpec& host);
  void hang_up() override;

 private:
  struct Held {
    std::mutex connecting;
    std::shared_ptr<SshConnection> connection;
    std::optional<Error> failure;  // of the first time
  };
  std::shared_ptr<SshConnection> connect(const HostSpec& host, const SshReach& way = {});
  std::shared_ptr<SshConnection> connect_anew(const HostSpec& host, const SshReach& way);
  std::shared_ptr<SshConnection> reach_anew(const HostSpec& host, const SshReach& way,
                                            SshOptions how);

  std::vector<HostSpec> hosts_;
  fs::path state_;
  Access access_;
  std::mutex mutex_;
  using Key = std::pair<NodeId, std::string>;  // whose, and what its key is known under
  std::map<Key, std::shared_ptr<Held>> held_;
  std::map<Key, std::weak_ptr<SshConnection>> connected_;  // for hang_up(), which waits for none
};

SshHost ssh_host_of(const HostSpec& host);

std::unique_ptr<Provider> make_ssh_provider(const ClusterSpec& spec, const fs::path& state,
                                            const Access& access);

}  // namespace dtrain
