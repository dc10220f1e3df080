#include "launcher/tune/problem.hpp"

#include <utility>

#include "launcher/core/text.hpp"

namespace dtrain::tune {

Path with(Path path, std::string step) {
  path.push_back(std::move(step));
  return path;
}

std::string to_string(const Path& path) {
  std::string text;
  for (const std::string& step : path) {
    if (!text.empty() && !step.starts_with('[')) text += '.';
    text += printable(step.substr(0, 60), false);
  }
  return text;
}

Error Problem::error() const {
  Error error(ErrorCode::invalid, path.empty() ? message : to_string(path) + ": " + message);
  if (!hint.empty()) error.with_hint(hint);
  return error;
}

void Problems::add(Path path, std::string message, std::string hint) {
  if (list_.size() < kMost) {
    list_.push_back({std::move(path), std::move(message), std::move(hint)});
  }
}

void Problems::check() const {
  if (list_.empty()) return;
  if (list_.size() == 1) throw list_.front().error();
  std::vector<std::string> lines;
  for (const Problem& problem : list_) lines.push_back(problem.error().message());
  throw Error(ErrorCode::invalid, join(lines, "; "));
}

}  // namespace dtrain::tune
