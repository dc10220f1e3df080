#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "launcher/provider/provider.hpp"

namespace dtrain::testing {

// A cloud in memory: what every laptop of one account sees. Its time passes only while somebody
// follows machines, one step a look. One thread at a time, as Provider says.
struct FakeCloud {
  struct Instance {
    std::string id;
    Tags tags;
    MachineState state = MachineState::pending;
    std::string reason;
    int left = 0;  // steps in this state
    int created = 0;
    std::string zone;
  };

  int steps_pending = 2;
  int steps_stopping = 1;
  std::map<std::string, int> capacity;   // of a type; absent: without end
  std::map<std::string, double> prices;  // of a type, an hour
  std::set<std::string> fail;            // nodes whose machines end instead of running
  std::map<std::string, int> slow;       // nodes whose machines take so many steps
  std::set<std::string> stay;            // nodes whose machines stay pending
  std::set<std::string> joined;          // nodes whose machines the head has asked for
  std::set<std::string> late;            // ids that lists do not have yet
  std::set<std::string> never;           // types that can never be had
  std::set<std::string> no_start;        // ids that are not started again
  std::function<void()> before_create;   // once
  std::function<std::unique_ptr<Transport>()> transport;  // to each; absent: none is reached
  std::function<void()> on_step;                          // while somebody follows
  std::vector<Instance> instances;                        // all that ever were
  int now = 0;
  int asked = 0;   // machines, by all create()
  int offers = 0;  // that somebody asked for

  void step();
  void vanish(const std::string& id);
  void stop(const std::string& id);
  Instance& instance(const std::string& id);
  std::size_t count(MachineState state) const;
};

// One laptop's view of one cluster in it.
class FakeCloudProvider : public Provider {
 public:
  FakeCloudProvider(std::shared_ptr<FakeCloud> cloud, std::string cluster_name)
      : cloud_(std::move(cloud)), name_(std::move(cluster_name)) {}

  std::vector<Machine> list() override;
  Offer offer(const std::string& type) override;
  void prepare(const std::vector<Request>& requests) override;
  void create(const std::vector<Request>& requests, const OutcomeSink& tell) override;
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell) override;
  void start(const std::vector<Machine>& machines, const OutcomeSink& tell) override;
  void follow(const std::vector<Machine>& machines, const OutcomeSink& tell,
              const std::stop_token& stop) override;
  std::unique_ptr<Transport> reach(const Machine& machine) override;
  wire::WantedMachines wanted(const ClusterId&) override { return {}; }
  std::vector<Machine> asked_for() override;

 private:
  Machine machine_of(const FakeCloud::Instance& instance) const;
  Offer offer_of(const std::string& type) const;
  MachineOutcome make(const Request& request, const NodeId& node);

  std::shared_ptr<FakeCloud> cloud_;
  std::string name_;
};

}  // namespace dtrain::testing
