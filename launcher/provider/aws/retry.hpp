#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// When a request to AWS is made again: botocore's "standard" mode, but that throttling alone does
// not end it, and that want of capacity, which EC2 tells by 500, does. Pure.
namespace dtrain::aws {

// EC2 has none now of what was asked for, there: it is no fault, though it comes as a 500.
bool is_want_of_capacity(std::string_view aws_code);

// A quota of the account's for instances of a kind, in all zones. Others that are called so are of
// tags, of volumes, or of requests in a time.
bool is_instance_quota(std::string_view aws_code);

// How a try ended that was no success.
struct Try {
  int status = 0;    // 0: there was no answer
  std::string code;  // AWS's: "RequestLimitExceeded"; empty: it says none
  std::optional<std::chrono::milliseconds> retry_after;  // as the answer asks
};

enum class Fault : std::uint8_t {
  refused,    // it will be the same the next time
  transient,  // a few tries more
  throttled,  // as long as there is time
};
Fault fault_of(const Try& failed);

// Before try `number` + 1, the first being 1. `random`: from 0 to 1.
std::chrono::milliseconds pause_after(const Try& failed, int number, double random);

}  // namespace dtrain::aws
