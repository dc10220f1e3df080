#include "launcher/spec/problem.hpp"

#include <utility>

#include "launcher/core/text.hpp"

namespace dtrain::spec {
namespace {

constexpr std::size_t kShown = 60;  // bytes of a value or a key in a message

}  // namespace

std::string to_string(const Path& path) {
  std::string text;
  for (const std::string& step : path) {
    const bool index = step.size() > 2 && step.front() == '[' && step.back() == ']';
    if (!text.empty() && !index) text += '.';
    text += printable(step, false);
  }
  return text;
}

Path with(Path path, std::string step) {
  path.push_back(std::move(step));
  return path;
}

Error Problem::error() const {
  Path brief = path;  // a key may be 4 KiB long
  for (std::string& step : brief) {
    if (step.size() > kShown) step = std::string(cut(step, kShown)) + "…";
  }
  Error error(ErrorCode::invalid, path.empty() ? message : to_string(brief) + ": " + message);
  if (!hint.empty()) error.with_hint(hint);
  return error;
}

std::string shown(std::string_view text) {
  if (text.size() <= kShown) return "'" + printable(text, false) + "'";
  return "'" + printable(cut(text, kShown), false) + "…'";
}

}  // namespace dtrain::spec
