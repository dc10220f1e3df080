#include <cstdlib>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/profiler/stacks.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"

// dtrain-profiler: what processes of this machine do now. `dtrain stack` brings it to a node and
// starts it there. A JSON line for each process; exit code 0, also where one could not be looked
// at.
namespace {

using namespace dtrain;

constexpr const char* kUsage =
    "usage: dtrain-profiler stacks [--job ID --attempt N [--ranks R,R...]] [PID...]\n"
    "A JSON line for each process: the native stacks of its threads.\n";

int run(const std::vector<std::string>& words) {
  std::vector<profiler::Target> targets;
  std::string job;
  int attempt = 0;
  std::set<int> ranks;
  const auto number = [](const std::string& word) {
    const auto value = number_from<int>(word);
    if (!value) throw Error(ErrorCode::usage, kUsage);
    return *value;
  };
  if (words.empty() || words.front() != "stacks") throw Error(ErrorCode::usage, kUsage);
  for (std::size_t i = 1; i < words.size(); ++i) {
    const bool has_value = i + 1 < words.size();
    if (words[i] == "--job" && has_value) {
      job = words[++i];
    } else if (words[i] == "--attempt" && has_value) {
      attempt = number(words[++i]);
    } else if (words[i] == "--ranks" && has_value) {
      for (const std::string& word : split(words[++i], ',')) ranks.insert(number(word));
    } else {
      targets.push_back({.pid = number(words[i])});
    }
  }
  if (!job.empty()) targets = profiler::processes_of(job, attempt, ranks);
  for (const nlohmann::json& each : profiler::stacks_of(targets)) {
    std::cout << each.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  }
  std::cout.flush();
  if (!std::cout) throw Error(ErrorCode::io, "what it found cannot be written");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ::unsetenv("DEBUGINFOD_URLS");  // what is not on this machine is not asked for
  try {
    return run({argv + 1, argv + argc});
  } catch (const Error& error) {
    std::cerr << "dtrain-profiler: " << error.message() << "\n";
    return error.code() == ErrorCode::usage ? 2 : 1;
  }
}
