#include "agent/head/server/news_queue.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace dtrain::head {

using nlohmann::json;

bool NewsQueue::add(json frame) {
  const std::lock_guard lock(mutex_);
  frames_.push_back(std::move(frame));
  if (frames_.size() > limit_) thin_out();
  return !std::exchange(woken_, true);
}

std::optional<json> NewsQueue::take() {
  const std::lock_guard lock(mutex_);
  if (frames_.empty()) {
    woken_ = false;
    return std::nullopt;
  }
  json frame = std::move(frames_.front());
  frames_.pop_front();
  if (frames_.empty()) limit_ = kNewsLimit;
  return frame;
}

bool NewsQueue::empty() const {
  const std::lock_guard lock(mutex_);
  return frames_.empty();
}

bool NewsQueue::take_missed_events() {
  const std::lock_guard lock(mutex_);
  return std::exchange(missed_events_, false);
}

std::size_t NewsQueue::size() const {
  const std::lock_guard lock(mutex_);
  return frames_.size();
}

void NewsQueue::thin_out() {
  std::map<std::pair<std::string, int>, json*> newest;  // by type and rank
  std::deque<json> kept;
  for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
    std::string type = frame->value("type", "");
    if (type == "event") {
      missed_events_ = true;
      continue;
    }
    const std::pair key(std::move(type), frame->value("rank", 0));
    const auto known = newest.find(key);
    if (known == newest.end()) {
      kept.push_front(std::move(*frame));  // leaves the other elements where they are
      newest.emplace(key, &kept.front());
    } else if (key.first == "metrics") {
      json& values = (*known->second)["metrics"];
      for (auto& [name, value] : (*frame)["metrics"].items()) {
        if (!values.contains(name)) values[name] = std::move(value);
      }
    }
  }
  frames_ = std::move(kept);
  // With very many ranks it is not done again for each frame.
  limit_ = std::max(kNewsLimit, 2 * frames_.size());
}

}  // namespace dtrain::head
