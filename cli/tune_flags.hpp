#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/tune/search_spec.hpp"

namespace CLI {
class App;
}

namespace dtrain::cli {

// A search's keys as flags, over a search YAML or without one.
struct SearchFlags {
  std::vector<std::string> params;  // NAME=DOMAIN
  std::optional<std::string> metric;
  std::optional<std::string> mode;
  std::optional<std::string> search;     // NAME, NAME:KEY=VALUE:…, or JSON
  std::optional<std::string> scheduler;  // the same
  std::optional<std::uint64_t> seed;
  std::vector<std::string> points;  // "lr=0.1,momentum=0.9"
  std::optional<std::uint64_t> num_samples;
  std::optional<int> max_concurrent;
  std::optional<int> time_budget_s;
  std::vector<std::string> stop;  // "loss<=0.1", "training_iteration=100"
  std::optional<std::string> fail_fast;
  std::vector<std::string> warm_start;  // as typed; whoever submits makes ids of them
};

void add_search_flags(CLI::App& app, SearchFlags& flags);

// What the flags say wins over what `spec` has, whose job is there already; a --param of a name
// that the space has replaces that one. Then the whole is checked: throws SpecError of all that is
// wrong, each naming its flag.
tune::SearchSpec with_search_flags(const tune::SearchSpec& spec, const SearchFlags& flags);

}  // namespace dtrain::cli
