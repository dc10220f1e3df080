#include "launcher/core/side_by_side.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <vector>

using namespace dtrain;

TEST_CASE("everything is done once, and never more than so many at once") {
  constexpr std::size_t kCount = 200;
  for (const std::size_t at_once : {0, 1, 3, 64, 500}) {
    std::vector<std::atomic<int>> done(kCount);
    std::atomic<std::size_t> now{0};
    std::atomic<std::size_t> most{0};
    side_by_side(kCount, at_once, [&](std::size_t i) {
      const std::size_t here = ++now;
      std::size_t seen = most;
      while (here > seen && !most.compare_exchange_weak(seen, here)) {
      }
      ++done[i];
      --now;
    });
    CHECK(std::all_of(done.begin(), done.end(), [](const auto& count) { return count == 1; }));
    CHECK(most <= std::max<std::size_t>(at_once, 1));
  }
  side_by_side(0, 4, [](std::size_t) { FAIL("nothing is to be done"); });
}
