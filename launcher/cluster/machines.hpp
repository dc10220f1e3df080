#pragma once

#include <cstddef>
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

// Asks for what `plan` creates. Gives what is known of each node that is kept or created, in the
// plan's order: it runs, is pending, or why it cannot be had; which is also what the provider
// throws once it has made some. `known`: provider's ids of machines that were there before, also of
// those that its list misses.
//
// Once it has made some, it asks `again` (with the provider's ids of those) how the plan is now:
// where another `up` was first, what this one has made is given back, and `plan` becomes that plan.
// When that one is refused, all that was made is given back before Error(conflict) is thrown; when
// it cannot be asked, what was made stays and is named.
std::vector<MachineOutcome> ask_for_machines(
    Provider& provider, ClusterPlan& plan,
    const std::function<ClusterPlan(const std::set<std::string>& made)>& again,
    const MachineWork& work, const std::set<std::string>& known = {});

// Follows what is pending of `asked`, and tells of each of them once, by its place, as soon as it
// runs or cannot be had: without an error its machine runs. What is pending may be so for days (a
// queue), and holds back no other: it ends with the provider's word or `stop`, and asking again
// goes on from there. Never throws; in the thread that calls.
void follow_machines(
    Provider& provider, const std::vector<MachineOutcome>& asked, const MachineWork& work,
    const std::function<void(std::size_t number, const MachineOutcome& outcome)>& arrived);

// Asks the provider to take them back: each is gone, stopping, or has an error, which is also what
// the provider throws.
std::vector<MachineOutcome> release_machines(Provider& provider,
                                             const std::vector<Machine>& machines,
                                             const OutcomeSink& tell);
// Follows those that are stopping until they are gone, or work.stop.
void follow_to_end(Provider& provider, std::vector<MachineOutcome>& released,
                   const MachineWork& work);
// Both.
std::vector<MachineOutcome> give_back(Provider& provider, const std::vector<Machine>& machines,
                                      const MachineWork& work);

}  // namespace dtrain
