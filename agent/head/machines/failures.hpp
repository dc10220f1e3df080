#pragma once

#include <chrono>
#include <map>
#include <string>

#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"

namespace dtrain::head {

// What could not be had, by type of machine: it is asked for again after a pause, each time a
// longer one.
class MachineFailures {
 public:
  static constexpr std::chrono::seconds kFirstRetry{10};
  static constexpr std::chrono::seconds kLastRetry{600};
  // One that ends before it has been there so long could not be had, as one that never came.
  static constexpr std::chrono::seconds kShortLife{60};

  struct Failure {
    Error why;
    int count;  // of so many at once, or more
    std::chrono::seconds pause;
    Monotonic at;
    Monotonic again;
  };

  explicit MachineFailures(const Clock& clock) : clock_(clock) {}

  // Those of one look, or of one request, are one.
  void add(const std::string& type, const Error& why, int count);
  // One that came then takes ranks, or did: if it stays they can be had again.
  void forgive(const std::string& type, Monotonic came);
  void clear() { failures_.clear(); }
  bool may_ask(const std::string& type, int count) const;
  const Failure* find(const std::string& type) const;  // null: none

 private:
  const Clock& clock_;
  std::map<std::string, Failure> failures_;
};

}  // namespace dtrain::head
