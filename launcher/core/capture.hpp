#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "launcher/core/process_exit.hpp"

namespace dtrain {

struct SpawnOptions;

struct Captured {
  ProcessExit exit;
  std::string out;
  std::string err;
  bool timed_out = false;  // it was killed at the deadline
};
// Runs a program to its end and collects what it writes (at most 16 MiB each; the rest is dropped).
Captured capture(SpawnOptions options, std::string_view input, std::chrono::milliseconds deadline);

}  // namespace dtrain
