#include "launcher/spec/contract.hpp"

#include <algorithm>

namespace dtrain::contract {

bool sets(std::string_view name) noexcept {
  const auto in = [name](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return in(kOfAttempt) || in(kOfRank) || in(kOfTrial);
}

}  // namespace dtrain::contract
