#pragma once

#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

// Stacks of many ranks as one tree, as STAT merges them (Arnold et al., "Stack Trace Analysis for
// Large Scale Debugging", IPDPS 2007): what they have in common stands once, from the outermost
// frame on, and each branch says which ranks are in it.
namespace dtrain::cli {

struct RankStack {
  int rank = 0;
  std::vector<std::string> frames;  // as shown, outermost first
};

// A line for each frame, ended; a chain is not indented, branches are, those of more ranks first.
std::string stack_tree(const std::vector<RankStack>& stacks);

// "ranks 0-3, 5", "rank 4"
std::string ranks_in_words(const std::set<int>& ranks);

// A C++ function's name without what makes it long: parameters, template arguments of more than a
// word, return type. "dtrain::train::Adam::step". Anything else as it is.
std::string short_function(const std::string& demangled);

// Of a frame as dtrain-profiler tells of it: "step (mnist_mlp, adam.cpp:31)".
std::string frame_in_words(const nlohmann::json& frame);

}  // namespace dtrain::cli
