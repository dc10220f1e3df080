#include "trainer/train/calls.hpp"

#include <utility>

namespace dtrain::train {

std::string describe(const Call& call) {
  if (call.sequence == 0) return "nothing yet";
  std::string text = std::string(call.operation) + " #" + std::to_string(call.sequence);
  if (*call.type == '\0') return text;
  return text + " (" + std::to_string(call.elements) + " " + call.type + ")";
}

Call Calls::begin(const char* operation, const char* type, std::int64_t elements,
                  std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  last_ = {last_.sequence + 1, operation, type, elements, bytes, std::chrono::steady_clock::now()};
  has_ended_ = nullptr;
  return last_;
}

void Calls::set_end(const Call& call, std::function<bool()> has_ended) {
  const std::lock_guard lock(mutex_);
  if (call.sequence == last_.sequence) has_ended_ = std::move(has_ended);
}

bool Calls::has_ended(const Call& call) const {
  const std::lock_guard lock(mutex_);
  if (call.sequence != last_.sequence) return true;
  return has_ended_ && has_ended_();
}

Call Calls::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

}  // namespace dtrain::train
