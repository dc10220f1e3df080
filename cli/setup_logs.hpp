#pragma once

#include <string>

#include "cli/context.hpp"

namespace dtrain::cli {

// Whether the word is the name of a node of the chosen cluster, as far as is known here or the head
// says; an empty word is none.
bool names_node(const Context& context, const std::string& word);

// Prints what the setup commands of a node wrote, list by list; gives the exit code. The head asks
// the node; of a node that has not joined, it is read over SSH. Throws Error when neither is
// possible.
int print_setup_logs(const Context& context, const std::string& node);

}  // namespace dtrain::cli
