#pragma once

#include <signal.h>

#include <chrono>
#include <string>
#include <vector>

#include "launcher/core/process.hpp"

// Programs that the tests of processes start.
namespace dtrain::testing {

inline constexpr std::chrono::seconds kDeadline{20};

inline SpawnOptions shell(const std::string& line) {
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", line};
  return options;
}

// A process that lives until it is killed, at the latest when the test ends.
inline pid_t sleeper(const std::vector<std::string>& env = current_environment()) {
  SpawnOptions options;
  options.argv = {"/bin/sleep", "1000"};
  options.env = env;
  options.death_signal = SIGKILL;
  return spawn(options);
}

}  // namespace dtrain::testing
