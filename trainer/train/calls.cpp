#include "trainer/train/calls.hpp"

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
  has_ended_ = false;
  return last_;
}

void Calls::end(const Call& call) {
  const std::lock_guard lock(mutex_);
  if (call.sequence == last_.sequence) has_ended_ = true;
  ended_ = std::chrono::steady_clock::now();
}

void Calls::add_wait(std::chrono::steady_clock::time_point since) {
  waited_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - since).count();
}

void Calls::add_wait(std::chrono::steady_clock::time_point since, std::chrono::nanoseconds before) {
  const std::lock_guard lock(mutex_);
  const std::chrono::nanoseconds all = ended_ - since;
  if (const auto more = all - (waited() - before); more.count() > 0) waited_ += more.count();
}

bool Calls::has_ended(const Call& call) const {
  const std::lock_guard lock(mutex_);
  return call.sequence != last_.sequence || has_ended_;
}

Call Calls::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

}  // namespace dtrain::train
