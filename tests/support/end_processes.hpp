#pragma once

#include <signal.h>

#include <chrono>
#include <thread>

#include "launcher/core/cluster_processes.hpp"

namespace dtrain::testing {

// Kills what runs on a folder, also what is started again meanwhile: head, node and watch each look
// after the others. Gives up after 20 s.
inline void end_processes(const fs::path& folder) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < until) {
    const std::vector<FoundProcess> left = cluster_processes(folder);
    if (left.empty()) return;
    for (const FoundProcess& process : left) signal_process(process, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace dtrain::testing
