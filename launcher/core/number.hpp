#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace dtrain {

// The whole text as a number, "1e3" only for floating-point ones; absent where it is none, or none
// that the type holds.
template <typename Number>
std::optional<Number> number_from(std::string_view text) {
  Number value{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  return error == std::errc{} && end == last ? std::optional(value) : std::nullopt;
}

}  // namespace dtrain
