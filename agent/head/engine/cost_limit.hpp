#pragma once

#include <optional>
#include <string>

namespace dtrain::head {

// What all machines of a cluster may cost; US dollars an hour.
struct CostLimit {
  std::optional<double> most;  // absent: no bound
  double now = 0;              // those that there are and are to come cost, the head's own too
  double least = 0;            // those of these that go by no job's end, and are to stand ready

  bool operator==(const CostLimit&) const = default;
};

// Why `count` machines of this price are not asked for beside others that cost `beside`; empty:
// they may be. Beside a limit what has no known price is not.
std::string too_dear(const CostLimit& limit, int count, const std::optional<double>& price,
                     double beside);

}  // namespace dtrain::head
