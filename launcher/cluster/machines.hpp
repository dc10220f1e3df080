#pragma once

#include <functional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "launcher/cluster/plan.hpp"
#include "launcher/provider/provider.hpp"

// Does what a plan says of machines; agents are nobody's matter here.
namespace dtrain {

struct MachineWork {
  OutcomeSink tell;      // each change, as it comes; may be empty
  std::stop_token stop;  // no more waiting for what is pending or stopping
};

// Makes what `plan` creates and follows what is pending. Gives an outcome for each node that is
// kept or created, in the plan's order; without an error its machine runs. What is pending may be
// so for days (a queue): it ends with the provider's word or `stop`, and asking again goes on from
// there.
//
// Once it has made some, it asks `again` (with the provider's ids of those) how the plan is now:
// where another `up` was first, what this one has made is given back, and `plan` becomes that plan.
// Throws Error(conflict) when that one is refused.
std::vector<MachineOutcome> make_machines(
    Provider& provider, ClusterPlan& plan,
    const std::function<ClusterPlan(const std::set<std::string>& made)>& again,
    const MachineWork& work);

// Gives them back and follows them to their end.
std::vector<MachineOutcome> give_back(Provider& provider, const std::vector<Machine>& machines,
                                      const MachineWork& work);

}  // namespace dtrain
