#include "launcher/core/names.hpp"

#include <array>
#include <cstdint>
#include <cstdio>

namespace dtrain {

bool valid_cluster_name(std::string_view text) noexcept {
  if (text.empty() || text.size() > kClusterNameLength) return false;
  if (text.front() == '.' || text.front() == '-') return false;
  for (const char c : text) {
    const bool allowed = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    if (!allowed) return false;
  }
  return true;
}

std::string short_name(std::string_view name) {
  if (name.size() <= kShortName) return std::string(name);
  const std::string sum = short_sum(name);
  return std::string(name.substr(0, kShortName - sum.size() - 1)) + "-" + sum;
}

std::string short_sum(std::string_view text) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 1099511628211ULL;
  }
  std::array<char, 17> hex{};
  std::snprintf(hex.data(), hex.size(), "%016llx", static_cast<unsigned long long>(hash));
  return hex.data();
}

}  // namespace dtrain
