#include "trainer/api/fill_window.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/error.hpp"

namespace dtrain::train {

std::int64_t fill_window(DataLoader::Pass& pass, std::deque<Batch>& ready, std::int64_t window,
                         Context& context) {
  const auto wanted = [&](std::int64_t count) {
    return static_cast<std::int64_t>(ready.size()) < count;
  };
  while (!pass.has_ended() && wanted(window)) {
    if (std::optional<Batch> batch = pass.next()) ready.push_back(std::move(*batch));
  }
  std::vector<double> fresh(static_cast<std::size_t>(context.world_size()));
  fresh[static_cast<std::size_t>(context.rank())] =
      pass.is_empty() ? -1.0 : static_cast<double>(ready.size());
  fresh = context.all_reduce_sum(std::move(fresh));
  for (std::size_t rank = 0; rank < fresh.size(); ++rank) {
    if (fresh[rank] >= 0) continue;
    throw Error("rank " + std::to_string(rank) + "'s part of the training stream has no batch");
  }
  const auto most = static_cast<std::int64_t>(*std::max_element(fresh.begin(), fresh.end()));
  while (wanted(most)) {
    if (std::optional<Batch> batch = pass.next()) {
      ready.push_back(std::move(*batch));
    } else {
      pass.again();
    }
  }
  return most;
}

}  // namespace dtrain::train
