#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "launcher/provider/provider.hpp"
#include "launcher/provider/slurm/machines.hpp"
#include "launcher/provider/ssh.hpp"

namespace dtrain::slurm {

// A cluster whose head runs on Slurm's login node, which is this machine or reached over SSH, and
// asks Slurm for the others. It is the only machine here: there already, not made and not given
// back. One name may lead to several login nodes: on which the head is says a file in the shared
// folder, CLUSTER_ID/head.host, and from any of them that one is reached.
class SlurmProvider final : public Provider {
 public:
  SlurmProvider(ClusterSpec spec, fs::path state, Access access);

  std::vector<Machine> list() override;
  void create(const std::vector<Request>& requests, const OutcomeSink& tell) override;
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell) override;
  void follow(const std::vector<Machine>& machines, const OutcomeSink& tell,
              const std::stop_token& stop) override;
  std::unique_ptr<Transport> reach(const Machine& machine) override;
  void head_starts(Transport& there, const ClusterId& cluster) override;
  wire::WantedMachines wanted(const ClusterId& cluster) override;
  std::vector<Machine> asked_for() override;
  void clear_up(const ClusterId& cluster) override;
  void hang_up() override;

 private:
  // As the user's shell there has it: where Slurm's commands are found.
  struct Place {
    std::vector<std::string> environment;
    fs::path home;
    fs::path shared;
  };
  // That of the head, where one has been started.
  std::unique_ptr<Transport> login_node();
  std::string shared_folder() const;  // as it was written
  void clear_up(const fs::path& folder);
  const Place& place();
  Machines& machines();

  const ClusterSpec spec_;
  std::unique_ptr<SshProvider> ssh_;  // null: the login node is this machine
  Machine login_;
  std::mutex mutex_;
  std::optional<Place> place_;
  std::optional<Machines> machines_;
};

std::unique_ptr<Provider> make_provider(const ClusterSpec& spec, const fs::path& state,
                                        const Access& access);

}  // namespace dtrain::slurm
