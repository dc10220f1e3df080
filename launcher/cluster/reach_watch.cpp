#include "launcher/cluster/reach_watch.hpp"

#include <algorithm>
#include <utility>

#include "launcher/core/no_signals.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

std::string not_reached_text(const ReachTry& last, ReachWatch::Clock::time_point now) {
  std::string text = "not reached for " +
                     human_duration(duration_cast<milliseconds>(now - last.begun)) + ": " +
                     last.why;
  if (last.tries > 1) text += " (" + std::to_string(last.tries) + " tries)";
  return text + "; given up after " +
         human_duration(duration_cast<milliseconds>(last.until - last.begun));
}

void ReachWatch::reaching(const NodeId& node, const std::optional<ReachTry>& last) {
  const std::lock_guard lock(mutex_);
  if (!last) {
    entries_.erase(node);
    return;
  }
  const auto [entry, fresh] = entries_.try_emplace(node, Entry{*last, last->begun + kFirst});
  if (!fresh) {
    entry->second.last = *last;
    return;
  }
  if (!thread_.joinable()) {
    const NoSignals none;
    thread_ = std::jthread([this](const std::stop_token& over) { watch(over); });
  }
  has_new_ = true;
  changed_.notify_one();
}

void ReachWatch::tell(ProgressSink sink) {
  const std::lock_guard lock(mutex_);
  tell_ = std::move(sink);
}

void ReachWatch::watch(const std::stop_token& over) {
  std::unique_lock lock(mutex_);
  while (!over.stop_requested()) {
    has_new_ = false;
    const auto now = Clock::now();
    std::optional<Clock::time_point> next;
    for (auto& [node, entry] : entries_) {
      if (entry.next <= now) {
        entry.next = now + kAgain;
        if (tell_) {
          tell_({node, NodeProgress::State::waiting, "connect", not_reached_text(entry.last, now),
                 milliseconds(0)});
        }
      }
      next = next ? std::min(*next, entry.next) : entry.next;
    }
    const auto ready = [&] { return has_new_; };
    if (next) {
      changed_.wait_until(lock, over, *next, ready);
    } else {
      changed_.wait(lock, over, ready);
    }
  }
}

}  // namespace dtrain
