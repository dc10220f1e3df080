#include "launcher/cluster/costs.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "launcher/cluster/counted.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/costs.hpp"

namespace dtrain {

const Offer& offer_of(UpRun& run, const std::string& type) {
  const auto [found, is_new] = run.offers.try_emplace(type);
  if (is_new && run.spec.has_type(type)) found->second = run.provider->offer(type);
  return found->second;
}

namespace {

std::optional<double> price_of(UpRun& run, const Machine& machine) {
  return offer_of(run, machine.type).costs.price_of(machine.instance_type, machine.spot);
}

bool is_asked_for(const UpRun& run, const Machine& machine) {
  return machine.joins && is_live(machine.state) && machine.cluster == run.plan.cluster;
}

}  // namespace

void check_cost(UpRun& run) {
  const std::optional<double>& most = run.spec.max_cost_per_hour;
  if (!most) return;
  double cost = 0;
  std::size_t made = 0;
  std::size_t unknown = 0;  // of those that stay
  std::set<std::string> unpriced;
  for (const NodePlan& each : run.plan.nodes) {
    if (each.action == NodeAction::release) continue;
    const std::string& type = each.machine.type;
    const bool is_new = each.action != NodeAction::keep;
    const auto price = is_new ? offer_of(run, type).costs.most() : price_of(run, each.machine);
    made += is_new ? 1 : 0;
    cost += price.value_or(0);
    if (price) continue;
    if (is_new) {
      unpriced.insert(type);
    } else {
      ++unknown;
    }
  }
  for (const Machine& machine : run.there) {
    if (!is_asked_for(run, machine)) continue;
    const auto price = price_of(run, machine);
    cost += price.value_or(0);
    unknown += price ? 0 : 1;
  }
  if (unknown > 0) {
    run.report.warnings.push_back("no price is known of " + counted(unknown, "machine") +
                                  ": max_cost_per_hour is of the others");
  }
  const std::string bound = "max_cost_per_hour is " + human_dollars(*most);
  UpReport::Cost& report = run.report.cost.emplace(UpReport::Cost{cost, *most, {}});
  if (!unpriced.empty()) {
    report.refused = bound + ", and no price is known of type " + *unpriced.begin();
    return;
  }
  constexpr double kSlip = 1e-6;
  if (cost <= *most + kSlip) return;
  const std::string would = human_dollars(cost) + " an hour, and " + bound;
  if (made > 0) {
    report.refused = "with " + counted(made, "new machine") + " the cluster would cost " + would;
  } else {
    run.report.warnings.push_back("the cluster costs " + would + ": the head asks for no more");
  }
}

void tell_costs(UpRun& run, const wire::ApiClient& head) {
  wire::ClusterCosts costs;
  costs.max_per_hour = run.spec.max_cost_per_hour;
  std::set<std::string> types{run.spec.head_node_type};
  for (const ClusterSpec::Workers& each : run.spec.workers()) {
    if (each.most > 0) types.insert(each.type);
  }
  for (const std::string& type : types) {
    costs.types.push_back(offer_of(run, type).costs);
    costs.types.back().name = type;
  }
  // The provider's list may miss what this very `up` has made.
  std::vector<Machine> machines = run.provider->list();
  for (const NodeUp& node : run.report.each) machines.push_back(node.machine);
  std::set<std::string> told;
  for (const Machine& machine : machines) {
    const bool is_ups = !machine.joins && machine.cluster == run.state.id;
    if (!is_ups || machine.id.empty() || !is_live(machine.state)) continue;
    if (!told.insert(machine.id).second) continue;
    costs.machines.push_back({machine.node, machine.id, machine.type, machine.instance_type,
                              machine.head, machine.spot, machine.created});
  }
  try {
    head.post("/v1/costs", wire::to_json(costs));
  } catch (Error& error) {
    error.while_doing("telling the head what machines cost");
    throw;
  }
}

}  // namespace dtrain
