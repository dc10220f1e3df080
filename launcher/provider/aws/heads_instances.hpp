#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/provider/aws/instances.hpp"
#include "launcher/provider/aws/launch.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/wire/machines.hpp"

namespace dtrain::aws {

// What the head's machine needs to know to ask EC2: WantedMachines::config.
struct CloudPlace {
  std::string region;
  std::string endpoint;  // of EC2; empty: the region's
};
nlohmann::json to_json(const CloudPlace& place);

// The instances that a cluster's head asks for, on its own machine and by its own role: what `up`
// found out about each type, its image and network say, it was told. One thread at a time.
class HeadsInstances {
 public:
  // `notes`: a folder of this cluster's that outlives crashes. Throws Error(invalid) for what
  // `wanted` says of AWS.
  HeadsInstances(const std::string& cluster_name, const fs::path& notes,
                 const wire::WantedMachines& wanted);
  ~HeadsInstances();

  // As Provider's; list() has all instances of the cluster's name, also those that an `up` made,
  // and those that AWS has taken back.
  std::vector<Machine> list() { return instances_->list_with_taken_back(); }
  void create(const std::vector<Request>& requests, const OutcomeSink& tell) {
    instances_->create(requests, tell);
  }
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell) {
    instances_->release(machines, tell);
  }
  void stop(const std::vector<Machine>& machines, const OutcomeSink& tell) {
    instances_->stop(machines, tell);
  }
  void start(const std::vector<Machine>& machines, const BootScript& boot,
             const OutcomeSink& tell) {
    instances_->start(machines, boot, tell);
  }

 private:
  std::unique_ptr<Http> http_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Instances> instances_;
};

}  // namespace dtrain::aws
