#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/head/engine/cost_limit.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/files.hpp"
#include "launcher/provider/machine.hpp"
#include "launcher/provider/machine_decision.hpp"
#include "launcher/wire/costs.hpp"

namespace dtrain::head {

// What the cluster's machines cost, and have cost. Each counts from when its provider says that it
// was made until it is seen to be there no more, at the price that was told last. The sum is kept
// together with the times until which each was counted, so that nothing is counted twice, whenever
// the head is killed. One thread.
class MachineAccount {
 public:
  // So long it is remembered that one is over: a provider's list may miss one for a while.
  static constexpr std::chrono::hours kRemembered{1};

  // Of what dump() has given; null: nobody has told of costs. Throws Error(invalid).
  explicit MachineAccount(const nlohmann::json& kept = nullptr);

  // Whether it knows of costs: else there are none.
  bool is_open() const { return told_.has_value(); }
  void tell(wire::ClusterCosts costs, WallTime now);
  const wire::ClusterCosts& told() const { return *told_; }
  // Those that there are; with `all` no others. True: dump() gives something else.
  bool see(const std::vector<Machine>& machines, bool all, WallTime now);
  // What those that there are have cost until now is counted.
  void settle(WallTime now);

  // What one that is asked for may cost; absent: not known.
  std::optional<double> most_of(const std::string& type) const;
  // Of those that it has seen, and of `others`: types of such as it has not. So many of each type
  // are `to_stand_ready`.
  CostLimit limit(const std::vector<std::string>& others,
                  const std::map<std::string, int>& to_stand_ready) const;
  bool has(const std::string& id) const;
  // An hour of one that there is; absent: not known.
  std::optional<double> price_of(const std::string& id) const;

  // {"per_hour", "max_per_hour", "spent", "since", "unpriced", "unpriced_ended", "machines":
  //  [{"node", "id", "type", "price", "since"}]}; null where it is not open.
  nlohmann::json view(WallTime now) const;
  nlohmann::json dump() const;

  struct Entry {
    std::string id;  // the provider's
    NodeId node;
    std::string type;
    std::string instance_type;
    bool head = false;
    bool joins = false;
    bool spot = false;
    std::optional<double> price;
    WallTime since{};    // that it was made, or started again
    WallTime counted{};  // its cost until then is in spent_
    bool over = false;
    WallTime seen{};  // over: when that was seen
  };

 private:
  std::optional<double> told_price(const Entry& entry) const;
  void count(Entry& entry, WallTime until);
  static bool started_anew(Entry& entry, WallTime created);
  bool take_in(const Machine& machine, WallTime now);
  static double owed(const Entry& entry, WallTime now);

  std::optional<wire::ClusterCosts> told_;
  double spent_ = 0;  // until each entry's `counted`
  int unpriced_ = 0;  // have ended without a price
  std::optional<WallTime> since_;
  std::map<std::string, Entry> entries_;  // by id
};

// Takes from decision.create what may not be asked for because of what it costs, of the types in
// the order in which they are wanted; why, by type. Pure.
std::map<std::string, std::string> stay_below(
    MachineDecision& decision, const wire::WantedMachines& wanted, const CostLimit& limit,
    const std::function<std::optional<double>(const std::string& type)>& price);

}  // namespace dtrain::head
