#include "launcher/provider/aws/retry.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace dtrain::aws {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongest{20000};
constexpr milliseconds kThrottledBase{1000};
constexpr milliseconds kTransientBase{50};
constexpr milliseconds kAskedMore{5000};  // of what an answer asks, beyond our own pause
constexpr std::array<std::string_view, 14> kThrottled{"Throttling",
                                                      "ThrottlingException",
                                                      "ThrottledException",
                                                      "RequestThrottledException",
                                                      "RequestThrottled",
                                                      "TooManyRequestsException",
                                                      "ProvisionedThroughputExceededException",
                                                      "TransactionInProgressException",
                                                      "RequestLimitExceeded",
                                                      "BandwidthLimitExceeded",
                                                      "LimitExceededException",
                                                      "SlowDown",
                                                      "PriorRequestNotComplete",
                                                      "EC2ThrottledException"};
constexpr std::array<std::string_view, 2> kTransient{"RequestTimeout", "RequestTimeoutException"};
constexpr std::array<int, 4> kTransientStatus{500, 502, 503, 504};

template <typename List, typename Value>
bool holds(const List& list, const Value& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

bool is_want_of_capacity(std::string_view aws_code) {
  return (aws_code.starts_with("Insufficient") && aws_code.ends_with("Capacity")) ||
         aws_code == "InsufficientCapacityOnHost" || aws_code == "ReservationCapacityExceeded";
}

bool is_instance_quota(std::string_view aws_code) {
  return aws_code == "VcpuLimitExceeded" || aws_code == "InstanceLimitExceeded" ||
         aws_code == "MaxSpotInstanceCountExceeded";
}

Fault fault_of(const Try& failed) {
  if (failed.status == 0) return Fault::transient;
  if (is_want_of_capacity(failed.code)) return Fault::refused;
  if (holds(kThrottled, failed.code)) return Fault::throttled;
  if (failed.status == 429) return Fault::throttled;
  if (holds(kTransient, failed.code) || holds(kTransientStatus, failed.status)) {
    return Fault::transient;
  }
  return Fault::refused;
}

milliseconds pause_after(const Try& failed, int number, double random) {
  const milliseconds base = fault_of(failed) == Fault::throttled ? kThrottledBase : kTransientBase;
  const double grown = static_cast<double>(base.count()) * std::exp2(std::min(number - 1, 30));
  const double most = std::min(grown, static_cast<double>(kLongest.count()));
  const milliseconds own(std::llround(random * most));
  if (!failed.retry_after) return own;
  return std::max(own, std::min(*failed.retry_after, own + kAskedMore));
}

}  // namespace dtrain::aws
