#include "agent/head/machines/failures.hpp"

#include <algorithm>

#include "launcher/core/log.hpp"

namespace dtrain::head {

void MachineFailures::add(const std::string& type, const Error& why, int count) {
  const auto now = clock_.now();
  const auto found = failures_.find(type);
  if (found != failures_.end() && found->second.again > now) {
    found->second.count = std::min(found->second.count, count);
    return;
  }
  const auto pause =
      found == failures_.end() ? kFirstRetry : std::min(kLastRetry, found->second.pause * 2);
  failures_.insert_or_assign(type, Failure{why, count, pause, now, now + pause});
  log::warn("no machine of this type can be had now", {{"type", type}, {"why", why.what()}});
}

void MachineFailures::forgive(const std::string& type, Monotonic came) {
  const auto failure = failures_.find(type);
  const bool is_newer = failure != failures_.end() && came > failure->second.at;
  if (is_newer && clock_.now() - came >= kShortLife) failures_.erase(failure);
}

bool MachineFailures::may_ask(const std::string& type, int count) const {
  const Failure* failure = find(type);
  return failure == nullptr || failure->again <= clock_.now() || count < failure->count;
}

const MachineFailures::Failure* MachineFailures::find(const std::string& type) const {
  const auto found = failures_.find(type);
  return found == failures_.end() ? nullptr : &found->second;
}

}  // namespace dtrain::head
