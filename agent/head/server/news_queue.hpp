#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>

#include <nlohmann/json.hpp>

namespace dtrain::head {

// What happened to a job, on its way to one follower: frames of docs/api.md in order, as long as
// the follower takes them. For one that lags, only the newest of each kind is kept: one state, and
// one progress and one metrics report a rank (with the newest value of each name); events are left
// out, since they can be read again from the store by their numbers. So it never holds many more
// than kNewsLimit frames, however long its reader stands still. Any thread.
inline constexpr std::size_t kNewsLimit = 64;

class NewsQueue {
 public:
  // True when the reader is to be woken: it has not been since it last found nothing.
  bool add(nlohmann::json frame);
  std::optional<nlohmann::json> take();
  bool empty() const;
  // Whether events were left out since this was last asked.
  bool take_missed_events();
  std::size_t size() const;

 private:
  void thin_out();

  mutable std::mutex mutex_;
  std::deque<nlohmann::json> frames_;
  std::size_t limit_ = kNewsLimit;
  bool missed_events_ = false;
  bool woken_ = false;
};

}  // namespace dtrain::head
