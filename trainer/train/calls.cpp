#include "trainer/train/calls.hpp"

namespace dtrain::train {

std::string describe(const Call& call) {
  if (call.sequence == 0) return "nothing yet";
  std::string text = std::string(call.operation) + " #" + std::to_string(call.sequence);
  if (*call.type == '\0') return text;
  return text + " (" + std::to_string(call.elements) + " " + call.type + ")";
}

Call Calls::begin(const char* operation, const char* type, std::int64_t elements) {
  const std::lock_guard lock(mutex_);
  last_ = {last_.sequence + 1, operation, type, elements, std::chrono::steady_clock::now()};
  return last_;
}

Call Calls::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

}  // namespace dtrain::train
