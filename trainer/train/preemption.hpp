#pragma once

#include <memory>

#include "trainer/train/context.hpp"

namespace dtrain::train {

// The exit code of a training that was told to go (SIGTERM), has saved its state and left: 128 +
// SIGTERM, which dtrain takes as preempted and not as a failure.
inline constexpr int kExitPreempted = 143;

// From here on SIGTERM does not end this process; agreed() tells all ranks of it. One at a time in
// a process; the destructor brings back what SIGTERM did before.
class Preemption {
 public:
  explicit Preemption(Context& context);
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  // True, on all ranks in the same step, once any rank has got SIGTERM: one step after it did,
  // since each call sends this rank's word and reads what all said in the call before, so that
  // nobody waits. Collective: every rank calls it once in each step, at the same place. `stop` goes
  // with it: this rank wants all of them to end for a reason of the program's own.
  bool agreed(bool stop = false);
  // Whether some rank had said so by what the last agreed() has read: alike on all ranks.
  bool stop_agreed() const;
  // Whether this process has got SIGTERM.
  bool told() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dtrain::train
