#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/core/clock.hpp"

namespace dtrain::head {

// When it was, by the clock that does not jump, what the database has by the wall clock's time: so
// that a head which is started again counts the same seconds as the one before, whatever was done
// to the machine's clock meanwhile. Of what is from before this boot only the wall clock is known.
class Moments {
 public:
  // What dump() gave; what is of another boot, or cannot be read, says nothing.
  Moments(std::string boot, const std::string& kept);

  // Looks whether the wall clock has jumped. True when there is something new to keep. To be asked
  // before a time is written down.
  bool see(Monotonic now, WallTime wall);
  // Not after `now`. Where a clock that was set back showed a time twice the later one is meant.
  Monotonic of(WallTime time, Monotonic now) const;
  std::string dump() const;

 private:
  // From then on the wall clock was so far ahead of the other.
  struct Span {
    std::chrono::milliseconds from;
    std::chrono::milliseconds ahead;
  };

  std::string boot_;
  std::vector<Span> spans_;
};

}  // namespace dtrain::head
