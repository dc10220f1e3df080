#include "launcher/core/version.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kLongest = 100;  // characters of a version
constexpr std::size_t kDigits = 9;     // of a number in it

// A part between dots: a number, or text, which comes after every number.
struct Part {
  bool is_text = false;
  std::int64_t number = 0;
  std::string text;
  auto operator<=>(const Part&) const = default;
};

struct Version {
  std::array<std::int64_t, 3> numbers{};
  bool is_release = true;         // comes after its pre-releases
  std::vector<Part> pre_release;  // the shorter of two comes first
  auto operator<=>(const Version&) const = default;
};

std::optional<std::int64_t> number_of(const std::string& text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.empty() || text.size() > kDigits || !std::all_of(text.begin(), text.end(), is_digit)) {
    return std::nullopt;
  }
  return std::stoll(text);
}

std::optional<Version> parse(std::string_view text) {
  text = text.substr(0, text.find('+'));  // where it was built does not count
  if (text.empty() || text.size() > kLongest) return std::nullopt;
  const std::size_t dash = text.find('-');
  const std::vector<std::string> numbers = split(std::string(text.substr(0, dash)), '.');
  Version version;
  if (numbers.size() != version.numbers.size()) return std::nullopt;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto number = number_of(numbers[i]);
    if (!number) return std::nullopt;
    version.numbers[i] = *number;
  }
  if (dash == std::string_view::npos) return version;
  version.is_release = false;
  for (const std::string& part : split(std::string(text.substr(dash + 1)), '.')) {
    if (part.empty()) return std::nullopt;
    const auto number = number_of(part);
    version.pre_release.push_back(number ? Part{false, *number, {}} : Part{true, 0, part});
  }
  return version;
}

}  // namespace

bool is_newer_version(std::string_view a, std::string_view b) {
  const auto first = parse(a);
  const auto second = parse(b);
  return first && second && *first > *second;
}

}  // namespace dtrain
