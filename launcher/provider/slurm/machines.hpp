#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "launcher/provider/provider.hpp"
#include "launcher/provider/slurm/allocation.hpp"
#include "launcher/provider/slurm/boot.hpp"
#include "launcher/provider/slurm/client.hpp"

// Machines of one cluster that are nodes of Slurm's allocations. Those of one request are one
// allocation, a Slurm job named dtrain-CLUSTER whose comment says whose and what they are; the id
// of the k-th machine of it is JOB/k. Nobody logs in to them: the allocation's batch script starts
// on each what its request has as `boot`, in a step of Slurm's, or one for each number of GPUs that
// nodes have, and the allocation is over when all of these have ended. One thread at a time.
namespace dtrain::slurm {

class Machines {
 public:
  // `boot`: where what machines start with is kept, and what their batch scripts say; on storage
  // that the login node and all nodes share, an absolute path. `options`: batch_options() of a
  // type.
  Machines(Client client, std::string cluster_name, fs::path boot,
           std::function<std::vector<std::string>(const std::string& type)> options);

  // As Provider's; workers alone, those too that ended not long ago.
  std::vector<Machine> list();
  // The same, and `boot` goes of allocations that are over; what their logs said last is in the
  // reason, once.
  std::vector<Machine> settle();
  void create(const std::vector<Request>& requests, const OutcomeSink& tell);
  // An allocation is given back when all machines of it are; until then one alone is told
  // Error(conflict).
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell);
  // Slurm tells of nothing by itself: it is asked after a second, and then ever less often. While
  // it does not answer that is the reason, for kLookPatience; then Error. With an allocation that
  // is over, `boot` goes; what its log said last is in the reason.
  void follow(const std::vector<Machine>& machines, const OutcomeSink& tell,
              const std::stop_token& stop);

  static constexpr std::chrono::milliseconds kFirstLook{1000};
  static constexpr std::chrono::milliseconds kLastLook{15000};
  static constexpr std::chrono::minutes kLookPatience{10};
  // Slurm takes 1024 bytes: of more nodes than fit a request is several allocations.
  static constexpr std::size_t kMostComment = 1000;
  // What is that old below `boot`, and no job's, goes when machines are asked for.
  static constexpr std::chrono::minutes kSweepAge{24 * 60};

 private:
  struct Found {
    Job job;
    Allocation allocation;
  };
  std::vector<Found> allocations();
  void ask_for(const Request& request, std::span<const NodeId> nodes, const OutcomeSink& tell);
  Job submit(const Request& request, const Allocation& allocation);
  Client::Batch batch_of(const Allocation& allocation) const;
  static void refuse_twins(const std::string& id, const Allocation& allocation,
                           const std::vector<Found>& there);
  static std::vector<Machine> machines_of(const std::vector<Found>& found,
                                          const std::map<std::string, Standing>& standings);
  static std::map<std::string, Standing> standings_of(const std::vector<Found>& found);
  // What those that are over and `ours` said last goes to their standings, their folders go.
  void bury(std::map<std::string, Standing>& standings, const std::vector<Found>& found,
            const std::function<bool(const std::string& job)>& ours);
  // How each job stands; `followed` by machine id.
  std::map<std::string, Standing> look(const std::map<std::string, Machine>& followed);
  void sweep();

  Client client_;
  std::string cluster_name_;
  BootFolders boot_;
  std::function<std::vector<std::string>(const std::string&)> options_;
  std::set<std::string> buried_;  // folders
};

}  // namespace dtrain::slurm
