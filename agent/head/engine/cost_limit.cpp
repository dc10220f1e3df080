#include "agent/head/engine/cost_limit.hpp"

#include "launcher/core/text.hpp"

namespace dtrain::head {
namespace {

constexpr double kSlip = 1e-6;  // of sums of prices

}  // namespace

std::string too_dear(const CostLimit& limit, int count, const std::optional<double>& price,
                     double beside) {
  if (!limit.most || count <= 0) return {};
  const std::string most = "max_cost_per_hour is " + human_dollars(*limit.most);
  if (!price) return "its price is not known, and " + most;
  const double more = count * *price;
  if (more + beside <= *limit.most + kSlip) return {};
  const std::string others = beside > 0 ? " beside " + human_dollars(beside) + " for others" : "";
  return "that is " + human_dollars(more) + " an hour" + others + ", " + most;
}

}  // namespace dtrain::head
