#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "launcher/provider/provider.hpp"
#include "launcher/remote/ssh/connection.hpp"

namespace dtrain {

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
  // `first`: the host behind which it is; null: none.
  std::shared_ptr<SshConnection> connect(const HostSpec& host, const HostSpec* first = nullptr);
  std::shared_ptr<SshConnection> connect_anew(const HostSpec& host, const HostSpec* first);
  std::shared_ptr<SshConnection> reach_anew(const HostSpec& host, const HostSpec* first,
                                            SshOptions how);

  std::vector<HostSpec> hosts_;
  fs::path state_;
  Access access_;
  std::mutex mutex_;
  std::map<NodeId, std::shared_ptr<Held>> held_;
  std::map<NodeId, std::weak_ptr<SshConnection>> connected_;  // for hang_up(), which waits for none
};

SshHost ssh_host_of(const HostSpec& host);

std::unique_ptr<Provider> make_ssh_provider(const ClusterSpec& spec, const fs::path& state,
                                            const Access& access);

}  // namespace dtrain
