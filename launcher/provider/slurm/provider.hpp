#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/provider/provider.hpp"
#include "launcher/provider/slurm/head_chain.hpp"
#include "launcher/provider/slurm/machines.hpp"
#include "launcher/provider/ssh.hpp"

namespace dtrain::slurm {

// A cluster whose head runs on Slurm's login node, which is this machine or reached over SSH, and
// asks Slurm for the others. It is the only machine here: there already, not made and not given
// back. One name may lead to several login nodes: on which the head is says a file in the shared
// folder, CLUSTER_ID/head.host, and from any of them that one is reached. Or the head's machine is
// an allocation of its own, and its successors' (HeadChain), always under the same id; it is
// reached through the login node.
class SlurmProvider final : public Provider {
 public:
  SlurmProvider(ClusterSpec spec, fs::path state, Access access);

  std::vector<Machine> list() override;
  Offer offer(const std::string& type) override;
  void create(const std::vector<Request>& requests, const OutcomeSink& tell) override;
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell) override;
  void follow(const std::vector<Machine>& machines, const OutcomeSink& tell,
              const std::stop_token& stop) override;
  std::unique_ptr<Transport> reach(const Machine& machine) override;
  void head_starts(Transport& there, const ClusterId& cluster) override;
  wire::WantedMachines wanted(const ClusterId& cluster) override;
  void check(const std::string& type) override;
  std::vector<Machine> asked_for() override;
  std::vector<Belonging> clear_up(const ClusterId& cluster) override;
  void hang_up() override;
  ClusterId id_of_new(const ClusterId& fresh) override;
  bool keeps_agents(const Machine& machine) const override;

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

  // provider_head.cpp: of a head in allocations of its own.
  HeadChain chain();
  HeadChain::Wanted wanted_head(const ClusterId& cluster);
  fs::path base();
  Machine head_machine(const HeadJob& job) const;
  std::vector<Machine> list_head();
  bool is_outdated(const HeadJob& job);
  Machine ask_for_head(const ClusterId& cluster);
  HeadJob only_one(HeadChain& jobs, const std::string& id) const;
  void release_head(const Machine& head, const OutcomeSink& tell);
  void release_late(const std::stop_token& stop);
  void follow_head(Machine head, const OutcomeSink& tell, const std::stop_token& stop);
  // The id of the job that is the head now; Error(unreachable) with why there is none.
  std::string head_job();

  const ClusterSpec spec_;
  std::unique_ptr<SshProvider> ssh_;  // null: the login node is this machine
  Machine login_;
  std::mutex mutex_;
  std::optional<Place> place_;
  std::optional<Machines> machines_;
  std::mutex head_mutex_;
  std::optional<std::pair<std::chrono::steady_clock::time_point, std::string>> seen_head_;
};

std::unique_ptr<Provider> make_provider(const ClusterSpec& spec, const fs::path& state,
                                        const Access& access);

}  // namespace dtrain::slurm
