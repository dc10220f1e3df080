#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "launcher/provider/provider.hpp"

namespace dtrain {

// Ctrl-C: who is at work sees it between two steps; what waits for a machine that says nothing is
// cut off a little later, while this lives.
class HangUp {
 public:
  static constexpr std::chrono::seconds kPatience{3};

  HangUp(Provider& provider, std::stop_token asked)
      : thread_([&provider, asked = std::move(asked)](const std::stop_token& over) {
          std::mutex mutex;
          std::condition_variable_any changed;
          // Before the lock: a stop that was asked for already calls it at once.
          const std::stop_callback wake(asked, [&] {
            const std::lock_guard inside(mutex);
            changed.notify_all();
          });
          std::unique_lock lock(mutex);
          changed.wait(lock, over, [&] { return asked.stop_requested(); });
          if (over.stop_requested()) return;
          changed.wait_for(lock, over, kPatience, [] { return false; });
          if (!over.stop_requested()) provider.hang_up();
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace dtrain
