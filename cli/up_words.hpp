#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "launcher/cluster/up.hpp"

// What `up` says of its plan and of what it did.
namespace dtrain::cli {

// What a person reads of each node when all is over: what failed, with its last lines, and what
// they should know.
void tell_nodes(const Context& context, const UpReport& report);

// "3 new machines: $12.24 an hour, $8935.20 a month; no price is known of 1"; empty: none is.
std::string cost_line(const ClusterPlan& plan);
// Which machines there will be, and why. Columns that no machine has anything for are left out.
std::string machines_table(const ClusterPlan& plan, bool color);
void print_plan(const Context& context, const ProviderTraits& traits, const UpReport& report);

nlohmann::json report_json(const ClusterSpec& spec, const UpReport& report);

}  // namespace dtrain::cli
