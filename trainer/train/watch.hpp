#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "trainer/comm/group.hpp"
#include "trainer/core/environment.hpp"

namespace dtrain::train {

// A thread beside the training, of little work: a heartbeat with step and collective sequence every
// ten seconds under dtrain; and when a peer gives a collective up while this rank is elsewhere, the
// step, the last collective and all native stacks of this process go to its error file, so that
// whoever looks for the hang finds it in the rank that hangs.
class Watch {
 public:
  // `group` is null where ranks do not share memory.
  Watch(const Environment& environment, std::shared_ptr<comm::SharedGroup> group);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void set_step(std::int64_t step) { step_.store(step, std::memory_order_relaxed); }

 private:
  void work();
  void report_break() const;

  const Environment environment_;
  const std::shared_ptr<comm::SharedGroup> group_;
  std::atomic<std::int64_t> step_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace dtrain::train
