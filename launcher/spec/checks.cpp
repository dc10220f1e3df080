#include "launcher/spec/checks.hpp"

#include <algorithm>
#include <utility>

#include "launcher/core/ids.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/limits.hpp"

namespace dtrain::spec {
namespace {

bool letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool digit(char c) {
  return c >= '0' && c <= '9';
}

bool only(std::string_view text, std::string_view marks) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return letter(c) || digit(c) || marks.find(c) != std::string_view::npos;
  });
}

// 10.0.0.5: four numbers of 0 to 255.
bool four_bytes(std::string_view text) {
  const std::vector<std::string> parts = split(text, '.');
  return parts.size() == 4 && std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
           return !part.empty() && part.size() <= 3 && std::stoi(part) <= 255;
         });
}

static_assert(limits::kNameLength == kShortName);

}  // namespace

bool valid_environment_name(std::string_view name) noexcept {
  return !name.empty() && name.size() <= 255 && !digit(name.front()) && only(name, "_");
}

bool valid_host(std::string_view text) noexcept {
  if (text.empty() || text.size() > 253 || text.front() == '-' || !only(text, "._-:%"))
    return false;
  if (text.front() == '.' || text.find("..") != std::string_view::npos) return false;
  if (std::none_of(text.begin(), text.end(), [](char c) { return letter(c) || digit(c); })) {
    return false;
  }
  const bool numbers =
      std::all_of(text.begin(), text.end(), [](char c) { return digit(c) || c == '.'; });
  return !numbers || std::count(text.begin(), text.end(), '.') < 3 || four_bytes(text);
}

bool valid_user(std::string_view text) noexcept {
  return !text.empty() && text.size() <= 64 && text.front() != '-' && only(text, "._@+-");
}

void Checks::add(Path path, std::string message, std::string hint) {
  problems_.push_back({std::move(path), std::move(message), std::move(hint)});
}

bool Checks::text(const Path& path, std::string_view value, std::size_t limit) {
  if (value.find('\0') != std::string_view::npos) {
    add(path, "contains a NUL character");
  } else if (value.size() > limit) {
    add(path, "is " + human_bytes(value.size()) + " long; at most " + human_bytes(limit) +
                  " are possible");
  } else if (!is_utf8(value)) {
    add(path, "is not UTF-8: " + shown(value));
  } else {
    return true;
  }
  return false;
}

bool Checks::absolute(const Path& path, std::string_view value) {
  if (!text(path, value, limits::kPathLength)) return false;
  if (!value.empty() && value.front() == '/') return true;
  add(path, value.empty() ? "is empty" : shown(value) + " is not an absolute path");
  return false;
}

bool Checks::absolute_or_home(const Path& path, std::string_view value) {
  if (!text(path, value, limits::kPathLength)) return false;
  if (value == "~" || value.starts_with("~/") || value.starts_with('/')) return true;
  add(path, value.empty() ? "is empty" : shown(value) + " is neither absolute nor below ~/");
  return false;
}

bool Checks::name(const Path& path, std::string_view value, std::string_view example,
                  std::size_t longest) {
  if (valid_cluster_name(value) && value.size() <= longest) return true;
  add(path,
      value.empty() ? "is empty"
                    : shown(value) + " is no name: 1 to " + std::to_string(longest) +
                          " of a-z A-Z 0-9 . _ -, not beginning with . or -",
      "for example: " + std::string(example));
  return false;
}

bool Checks::host(const Path& path, std::string_view value) {
  if (valid_host(value)) return true;
  std::string message = "is empty";
  if (!value.empty()) {
    message = shown(value) + " is neither an address nor a host name";
    if (!only(value, "._-:%") || value.front() == '-') {
      message += ": letters, digits and . _ - : %, not beginning with -";
    }
  }
  add(path, message);
  return false;
}

void Checks::range(const Path& path, double value, double min, double max) {
  if (value >= min && value <= max) return;  // false for NaN
  add(path,
      "must be " + number_text(min) + " to " + number_text(max) + ", not " + number_text(value));
}

std::vector<Error> to_errors(const std::vector<Problem>& problems) {
  std::vector<Error> errors;
  errors.reserve(problems.size());
  for (const Problem& problem : problems) errors.push_back(problem.error());
  return errors;
}

}  // namespace dtrain::spec
