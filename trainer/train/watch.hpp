#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "trainer/comm/group.hpp"
#include "trainer/core/environment.hpp"
#include "trainer/report/reporter.hpp"
#include "trainer/report/step_clock.hpp"
#include "trainer/train/calls.hpp"

namespace dtrain::train {

// Short texts by name that all ranks see: the group's store. Both may throw, and may block for as
// long as the store's host does not answer.
struct Board {
  std::function<void(const std::string& name, const std::string& text)> write;
  std::function<std::optional<std::string>(const std::string& name)> read;
};

// A thread beside the training, of little work:
// - under dtrain a heartbeat with step, phase, collective and what steps take, each second in which
//   one of them is another than before, else every ten;
// - all that this rank does with the board, so that the training waits for a bounded time only;
// - this rank's last collective over Gloo or NCCL is put on the board, so that a rank whose
//   collective failed can say who is behind;
// - when a peer gives a collective up while this rank is elsewhere, the step, the last collective
//   and all native stacks of this process go to its error file, so that whoever looks for the hang
//   finds it in the rank that hangs.
class Watch {
 public:
  struct Options {
    std::chrono::milliseconds beat = std::chrono::seconds(10);   // of a rank that stands still
    std::chrono::milliseconds moving = std::chrono::seconds(1);  // of one that does not
  };
  // What the ranks are joined by; none of it where there is one rank.
  struct Joined {
    std::shared_ptr<comm::SharedGroup> group;  // null where ranks do not share memory
    std::shared_ptr<const Calls> calls;        // over Gloo and NCCL; null where there are neither
    Board board;                               // empty with one rank
    // Time in collectives; absent: not known.
    std::function<std::optional<CollectiveTime>()> collective_time = [] {
      return CollectiveTime{{}, {}, true, true};  // there is one rank
    };
  };

  Watch(const Environment& environment, Joined joined, Options options);
  Watch(const Environment& environment, Joined joined)
      : Watch(environment, std::move(joined), Options()) {}
  ~Watch();  // waits for the thread
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // The training's thread. Each costs a look at the clock.
  void set_step(std::int64_t step);
  // Static text. Returns what it was before.
  const char* set_phase(const char* phase);
  std::optional<StepSums> step_sums() const { return steps_.read(); }
  // Any thread, all that follow. Best effort: nothing is written or found when the board does not
  // answer within a second.
  void write(const std::string& name, const std::string& text);
  std::optional<std::string> read(const std::string& name);
  // Words about who is behind, for the message of a call that took long and failed; empty if it
  // failed at once, since what is on the board is too old then.
  std::string explain(const Call& failed);
  // Ends the thread. False if it hangs with the board for longer than two seconds: then this object
  // must not be destroyed.
  bool end();

 private:
  using Clock = std::chrono::steady_clock;
  using Task = std::packaged_task<std::optional<std::string>()>;

  std::optional<std::string> ask(std::function<std::optional<std::string>()> what);
  void work();
  void run_tasks(std::unique_lock<std::mutex>& lock);
  void publish();
  std::string who_is_behind(const Call& failed) const;
  void look_for_break();
  void report_break() const;
  std::string last_call() const;
  Heartbeat look_at_rank();

  const Environment environment_;
  const Joined joined_;
  const Options options_;
  std::atomic<std::int64_t> step_{0};
  std::atomic<const char*> phase_{""};
  StepClock steps_;
  std::uint64_t entered_sequence_ = 0;          // the thread's own
  double entered_ = 0;                          // the thread's own: when that call began
  Clock::time_point board_at_{};                // the thread's own: when it is looked at next
  std::optional<Clock::time_point> broken_at_;  // the thread's own
  const char* why_broken_ = "";                 // the thread's own
  std::string published_;                       // the thread's own
  std::atomic<bool> gave_up_{false};            // this rank said so itself

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool ends_ = false;
  bool ended_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace dtrain::train
