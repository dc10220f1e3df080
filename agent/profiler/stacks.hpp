#pragma once

#include <sys/types.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace dtrain::profiler {

// A process, and whose it is.
struct Target {
  pid_t pid = 0;
  std::optional<int> rank;
  int attempt = 0;
  bool is_first = true;  // of its rank: not one that the rank's program has started
};

// The processes of an attempt's ranks on this machine, by their environment; in order of their
// ranks. One that a rank has started is that rank's, whatever its own environment says. `ranks`:
// these alone; empty: all.
std::vector<Target> processes_of(const std::string& job, int attempt, const std::set<int>& ranks);

// What each does now: {"pid", "rank", "attempt", "program", "first", "stopped_us", "threads":
// [{"tid", "name", "state", "system_call", "cpu_ms", "frames": [{"function", "library", "file",
// "line"}], "cut", "error"}], "error": {…}}; what is not known is absent. All are looked at before
// the first is named, so that they are as near in time as can be.
std::vector<nlohmann::json> stacks_of(const std::vector<Target>& targets);

}  // namespace dtrain::profiler
