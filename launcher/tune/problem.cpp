#include "launcher/tune/problem.hpp"

#include <utility>

#include "launcher/core/text.hpp"

namespace dtrain::tune {

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
