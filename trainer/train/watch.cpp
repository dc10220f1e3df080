#include "trainer/train/watch.hpp"

#include <signal.h>

#include <cstdlib>

#include "trainer/core/run.hpp"
#include "trainer/core/stacks.hpp"

namespace dtrain::train {
namespace {

constexpr std::chrono::milliseconds kLook{200};  // at shared memory
// The rank that waits in the collective learns of it by itself and says more.
constexpr std::chrono::seconds kOwnWords{1};
constexpr std::chrono::seconds kAnswer{1};
constexpr std::chrono::seconds kEnd{2};
constexpr const char* kBroken = "dtrain/broken";

std::string name_of_calls(int rank) {
  return "dtrain/calls/" + std::to_string(rank);
}

}  // namespace

Watch::Watch(const Environment& environment, Joined joined, Options options)
    : environment_(environment), joined_(std::move(joined)), options_(options) {
  if (!joined_.board.read && !joined_.group && !environment_.report_socket) return;
  // Signals are for the training's thread.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { work(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watch::~Watch() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool Watch::end() {
  if (!thread_.joinable()) return true;
  std::unique_lock lock(mutex_);
  ends_ = true;
  changed_.notify_all();
  return changed_.wait_for(lock, kEnd, [this] { return ended_; });
}

std::optional<std::string> Watch::ask(std::function<std::optional<std::string>()> what) {
  if (!joined_.board.read) return std::nullopt;
  Task task(std::move(what));
  std::future<std::optional<std::string>> answer = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    if (ends_) return std::nullopt;
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
  if (answer.wait_for(kAnswer) != std::future_status::ready) return std::nullopt;
  try {
    return answer.get();
  } catch (const std::exception&) {
    return std::nullopt;  // the store is gone, and whoever would read or write there
  }
}

void Watch::set_step(std::int64_t step) {
  step_.store(step, std::memory_order_relaxed);
  steps_.step(step, Clock::now(), joined_.collective_time());
}

const char* Watch::set_phase(const char* phase) {
  steps_.enter(phase, Clock::now(), joined_.collective_time());
  return phase_.exchange(phase, std::memory_order_relaxed);
}

void Watch::write(const std::string& name, const std::string& text) {
  ask([this, name, text] {
    joined_.board.write(name, text);
    return std::nullopt;
  });
}

std::optional<std::string> Watch::read(const std::string& name) {
  return ask([this, name] { return joined_.board.read(name); });
}

std::string Watch::explain(const Call& failed) {
  if (Clock::now() - failed.begun < 2 * options_.beat) return "";
  gave_up_ = true;
  note_stacks(native_stacks());
  return ask([this, failed] {
           joined_.board.write(kBroken, std::to_string(environment_.rank));
           return std::optional(who_is_behind(failed));
         })
      .value_or("; the group's store does not answer");
}

// The one with the lowest sequence, by what the ranks have put on the board.
std::string Watch::who_is_behind(const Call& failed) const {
  std::uint64_t least = failed.sequence;
  std::string text = "; every rank has come to it";
  for (int rank = 0; rank < environment_.world_size; ++rank) {
    if (rank == environment_.rank) continue;
    const std::optional<std::string> words = joined_.board.read(name_of_calls(rank));
    if (!words) return "; the slowest is rank " + std::to_string(rank) + ", which says nothing";
    char* rest = nullptr;
    const std::uint64_t sequence = std::strtoull(words->c_str(), &rest, 10);
    if (sequence >= least) continue;
    least = sequence;
    text = "; the slowest is rank " + std::to_string(rank) + ": its last call was" + rest;
  }
  return text;
}

// When a call in shared memory began is when this thread saw it first: the call itself need not
// look at a clock.
Heartbeat Watch::look_at_rank() {
  Heartbeat here;
  here.step = step_.load(std::memory_order_relaxed);
  here.phase = phase_.load(std::memory_order_relaxed);
  here.step_times = steps_.read();
  Heartbeat::Collective its;
  Clock::duration age{};
  if (joined_.group) {
    const comm::Post last = joined_.group->last_post(environment_.rank);
    its.sequence = last.sequence;
    its.name = comm::name_of(last.kind);
    its.bytes = last.bytes;
    its.done = joined_.group->last_left(environment_.rank) >= last.sequence;
  }
  if (joined_.calls) {
    // All ranks begin those in shared memory and the others in the same order, so that the sum
    // tells who is behind. It waits for the other, unless it is in the one in shared memory.
    const Call last = joined_.calls->last();
    if (last.sequence > 0 && its.done != false) {
      its.name = last.operation;
      its.bytes = last.bytes;
      its.done = joined_.calls->has_ended(last);
      age = Clock::now() - last.begun;
    }
    its.sequence += last.sequence;
  }
  if (its.sequence == 0) return here;
  if (its.sequence != entered_sequence_) {
    entered_sequence_ = its.sequence;
    entered_ =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch() - age)
            .count();
  }
  its.entered = entered_;
  here.collective = std::move(its);
  return here;
}

std::string Watch::last_call() const {
  const Call last = joined_.calls ? joined_.calls->last() : Call{};
  if (joined_.group && last.sequence == 0) {
    return comm::describe(joined_.group->last_post(environment_.rank));
  }
  return describe(last);
}

void Watch::report_break() const {
  const std::string message = std::string(why_broken_) +
                              " while this one was elsewhere: after step " +
                              std::to_string(step_.load()) + ", last call " + last_call();
  note_stacks(native_stacks());
  if (environment_.error_file) write_error_file(*environment_.error_file, message);
}

void Watch::publish() {
  const Call last = joined_.calls->last();
  const std::string words = std::to_string(last.sequence) + " " + describe(last) + ", at step " +
                            std::to_string(step_.load());
  if (words == published_) return;
  joined_.board.write(name_of_calls(environment_.rank), words);
  published_ = words;
}

void Watch::look_for_break() {
  if (broken_at_ || gave_up_) return;
  const Clock::time_point now = Clock::now();
  bool broken = joined_.group && joined_.group->broken();
  why_broken_ = "a collective failed on another rank";
  if (!broken && joined_.calls && now >= board_at_) {
    board_at_ = now + options_.beat;
    try {
      publish();
      broken = joined_.board.read(kBroken).has_value();
    } catch (const std::exception&) {
      broken = true;
      why_broken_ = "the group's store has gone with rank 0";
    }
  }
  if (broken) broken_at_ = now;
}

void Watch::run_tasks(std::unique_lock<std::mutex>& lock) {
  while (!tasks_.empty()) {
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

void Watch::work() {
  std::optional<Reporter> reporter;
  if (environment_.report_socket) {
    Reporter::Options options;
    options.warn = [](const std::string&) {};  // the training's own reporter says it
    reporter.emplace(*environment_.report_socket, options);
  }
  const std::chrono::milliseconds pause =
      joined_.group ? std::min<std::chrono::milliseconds>(kLook, options_.beat) : options_.beat;
  Clock::time_point next_look = Clock::now();  // at once: the peers know that this rank is here
  // At once: a rank that never comes to its first step is known too.
  Clock::time_point next_beat = next_look;
  const std::chrono::milliseconds moving = std::min(options_.moving, options_.beat);
  std::optional<Heartbeat> told;
  Clock::time_point told_at{};
  bool reported = false;
  std::unique_lock lock(mutex_);
  while (!ends_) {
    run_tasks(lock);
    lock.unlock();
    const Clock::time_point now = Clock::now();
    if (now >= next_look) {
      next_look = now + pause;
      look_for_break();
    }
    if (reporter) {
      const Heartbeat here = look_at_rank();
      if (now >= next_beat) {
        next_beat = now + moving;
        if (told != here || now >= told_at + options_.beat) {
          reporter->heartbeat(here);
          told = here;
          told_at = now;
        }
      }
    }
    Clock::time_point until = std::min(next_look, reporter ? next_beat : next_look);
    if (broken_at_ && !reported) {
      if (now >= *broken_at_ + kOwnWords) {
        reported = true;
        if (!gave_up_) report_break();
      } else {
        until = std::min(until, *broken_at_ + kOwnWords);
      }
    }
    lock.lock();
    changed_.wait_until(lock, until, [this] { return ends_ || !tasks_.empty(); });
  }
  run_tasks(lock);
  ended_ = true;
  changed_.notify_all();
}

}  // namespace dtrain::train
