#pragma once

#include <string>

#include "cli/context.hpp"

namespace dtrain::cli {

// Prints what the setup commands of a node wrote, list by list; gives the exit code. The head asks
// the node; of a node that has not joined, it is read over SSH. Throws Error when neither is
// possible.
int print_setup_logs(const Context& context, const std::string& node);

}  // namespace dtrain::cli
