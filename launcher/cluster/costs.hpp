#pragma once

#include "launcher/cluster/up_way.hpp"

namespace dtrain::wire {
class ApiClient;
}

// What a cluster costs whose provider takes money for machines, as far as `up` says it.
namespace dtrain {

// Of a type, {} where the YAML has none of the name. The provider is asked once in an `up`.
const Offer& offer_of(UpRun& run, const std::string& type);

// Where the YAML bounds it: what the cluster will cost an hour by run.plan, and why that may not be
// made, in run.report. Machines that stay, and those that the head has asked for, count.
void check_cost(UpRun& run);
// Tells the head the prices, the bound, and which machines an `up` has made. Throws Error.
void tell_costs(UpRun& run, const wire::ApiClient& head);

}  // namespace dtrain
