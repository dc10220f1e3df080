#include "agent/head/server/greetings.hpp"

#include <algorithm>
#include <utility>

namespace dtrain::head {

std::uint64_t Greetings::enter(const std::string& source, std::function<void()> drop) {
  if (const auto same = waiting_.find(source);
      same != waiting_.end() && same->second.size() >= most_of_source_) {
    drop_oldest(same->second);
  } else if (sources_.size() >= most_) {
    drop_one();
  }
  const std::uint64_t number = ++last_;
  waiting_[source].emplace(number, std::move(drop));
  sources_.emplace(number, source);
  return number;
}

void Greetings::leave(std::uint64_t number) {
  const auto found = sources_.find(number);
  if (found == sources_.end()) return;
  const auto source = waiting_.find(found->second);
  source->second.erase(number);
  if (source->second.empty()) waiting_.erase(source);
  sources_.erase(found);
}

bool Greetings::drop_one() {
  const auto most = std::max_element(
      waiting_.begin(), waiting_.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (most == waiting_.end()) return false;
  drop_oldest(most->second);
  return true;
}

void Greetings::drop_oldest(const Drops& of) {
  const auto [number, drop] = *of.begin();
  leave(number);
  ++dropped_;
  drop();
}

}  // namespace dtrain::head
