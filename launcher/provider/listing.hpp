#pragma once

#include <functional>
#include <vector>

#include "launcher/provider/provider.hpp"

// What providers that make machines have in common.
namespace dtrain {

// The head first, then node-2 before node-10; those of one name stay in their order.
void sort_by_node(std::vector<Machine>& machines);

// Provider::create(): of the nodes of each request those that have a live machine among `there` are
// told as they are, and `ask` gets the others, if there are any. Another cluster of this name,
// which was lost, may have nodes of the same names.
void ask_for_missing(
    const std::vector<Machine>& there, const std::vector<Request>& requests,
    const OutcomeSink& tell,
    const std::function<void(const Request& request, const std::vector<NodeId>& missing)>& ask);

}  // namespace dtrain
