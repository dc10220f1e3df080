#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "launcher/tune/scheduler.hpp"
#include "launcher/tune/space.hpp"

namespace dtrain::tune::test {

// What record.py wrote.
inline nlohmann::json recorded(const std::string& name) {
  std::ifstream file(std::string(DTRAIN_SOURCE_ROOT) + "/tests/launcher/tune/recorded/" + name +
                     ".json");
  REQUIRE(file.good());
  return nlohmann::json::parse(file);
}

inline SearchSpace space_of(std::string_view json) {
  Problems problems;
  SearchSpace space = SearchSpace::from_json(nlohmann::json::parse(json), {"space"}, problems);
  problems.check();
  return space;
}

// All that is wrong, one a line.
inline std::string lines(const Problems& problems) {
  std::string text;
  for (const Problem& problem : problems.list()) text += problem.error().message() + "\n";
  return text;
}

inline std::unique_ptr<Scheduler> scheduler_of(std::string_view json, Mode mode,
                                               const SearchSpace& space = {},
                                               std::uint64_t trials = 0) {
  Problems problems;
  const auto spec =
      scheduler_spec_from_json(nlohmann::json::parse(json), space, {"scheduler"}, problems);
  problems.check();
  return make_scheduler(spec, space, mode, 1, trials);
}

}  // namespace dtrain::tune::test
