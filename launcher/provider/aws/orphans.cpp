#include "launcher/provider/aws/orphans.hpp"

#include <map>
#include <set>
#include <utility>

#include "launcher/core/paths.hpp"
#include "launcher/provider/aws/belongings.hpp"
#include "launcher/provider/aws/instances.hpp"

namespace dtrain::aws {
namespace {

constexpr std::size_t kFilterValues = 200;  // EC2's limit

constexpr const char* kMachine = "machine";

class RegionsOrphans final : public Orphans {
 public:
  explicit RegionsOrphans(const std::string& region)
      : config_(process_variables()),
        http_(make_http(config_.ca_bundle())),
        client_(config_, real_world(*http_), region),
        prices_(client_, paths::state_home() / kPricesFile) {}

  std::vector<Orphan> find() override {
    std::set<std::string> headed;  // ids of clusters
    std::set<std::string> living;  // their names
    std::vector<std::pair<std::string, Orphan>> machines;
    for_each_instance(client_, of_any_cluster(), [&](const Xml& instance) {
      const std::string state = instance.at("instanceState/name");
      if (state == "terminated" || state == "shutting-down") return;
      const std::string cluster = tag_of(instance, kClusterTag);
      const std::string id = tag_of(instance, "dtrain-cluster-id");
      std::string what = instance.at("instanceType") + ", " + state;
      const bool lives = state == "pending" || state == "running";
      const bool is_head = tag_of(instance, "dtrain-role") == "head";
      if (is_head) {
        headed.insert(id);
        living.insert(cluster);
      }
      if (lives && is_head) return;
      // What is on its disk is somebody's: it is told, and kept.
      what += is_head ? ", the head of a cluster that dtrain up brings back, and dtrain down ends"
                      : " since " + instance.at("launchTime");
      machines.push_back(
          {id, {cluster, {kMachine, instance.at("instanceId"), false, is_head, what}}});
    });
    std::vector<Orphan> found;
    for (auto& [id, machine] : machines) {
      // One whose tags do not say it is of whichever cluster has its name.
      const bool has_head = id.empty() ? living.contains(machine.cluster) : headed.contains(id);
      if (machine.thing.kept || !has_head) found.push_back(std::move(machine));
    }
    for (Orphan& each : belongings(client_, of_any_cluster(), prices_)) {
      if (!living.contains(each.cluster)) found.push_back(std::move(each));
    }
    return found;
  }

  void take_away(std::vector<Orphan>& orphans, const std::stop_token& stop) override {
    std::map<std::string, std::map<std::string, Belonging*>> machines;  // by cluster and id
    std::set<std::string> known;
    for (Orphan& each : orphans) {
      known.insert(each.thing.id);
      if (each.thing.what == kMachine && !each.thing.kept)
        machines[each.cluster].emplace(each.thing.id, &each.thing);
    }
    for (auto& [cluster, of_it] : machines) give_back(cluster, of_it, stop);
    for (Orphan& each : orphans) {
      if (stop.stop_requested()) return;
      if (each.thing.what != kMachine && !each.thing.kept) aws::take_away(client_, each);
    }
    // Volumes that their machines have left.
    for (const auto& [cluster, of_it] : machines) {
      // By their machines, for a cluster of that name may live.
      for (auto next = of_it.begin(); next != of_it.end();) {
        Form attached{{"Filter.1.Name", "attachment.instance-id"}};
        for (; next != of_it.end() && attached.size() <= kFilterValues; ++next) {
          attached.emplace_back("Filter.1.Value." + std::to_string(attached.size()), next->first);
        }
        for (Belonging& each : await_detached(client_, attached)) {
          known.insert(each.id);
          orphans.push_back({cluster, std::move(each)});
        }
      }
      for (Orphan& each : belongings(client_, of_cluster(cluster), prices_)) {
        if (each.thing.kept && known.insert(each.thing.id).second) {
          orphans.push_back(std::move(each));
        }
      }
    }
  }

 private:
  void give_back(const std::string& cluster, const std::map<std::string, Belonging*>& machines,
                 const std::stop_token& stop) {
    Instances instances(client_, cluster, {}, {});
    std::vector<Machine> going;
    for (Machine& machine : instances.all()) {
      if (machines.contains(machine.id)) going.push_back(std::move(machine));
    }
    for (const auto& [id, thing] : machines) thing->gone = true;  // but for those that are listed
    for (const Machine& machine : going) machines.at(machine.id)->gone = false;
    const OutcomeSink tell = [&](const MachineOutcome& outcome) {
      Belonging& thing = *machines.at(outcome.machine.id);
      thing.gone = !outcome.error && outcome.machine.state == MachineState::gone;
      if (outcome.error) thing.note = outcome.error->message();
    };
    instances.give_back(going, tell, stop);
  }

  Config config_;
  std::unique_ptr<Http> http_;
  Client client_;
  Prices prices_;
};

}  // namespace

std::unique_ptr<Orphans> make_orphans(const std::string& region) {
  return std::make_unique<RegionsOrphans>(region);
}

}  // namespace dtrain::aws
