#include "launcher/spec/report.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace dtrain {
namespace {

std::string summary(const std::vector<Error>& problems) {
  if (problems.empty()) return "the file is wrong";
  std::string text = problems.front().message();
  if (problems.size() == 2) text += " (and 1 more problem)";
  if (problems.size() > 2) {
    text += " (and " + std::to_string(problems.size() - 1) + " more problems)";
  }
  return text;
}

auto order(const Location& location) {
  return std::make_tuple(location.line, location.column);
}

}  // namespace

SpecError::SpecError(std::vector<Error> problems)
    : Error(ErrorCode::invalid, summary(problems)), problems_(std::move(problems)) {
  if (problems_.empty()) return;
  if (problems_.front().location()) at(*problems_.front().location());
  if (!problems_.front().hint().empty()) with_hint(problems_.front().hint());
}

namespace spec {

void Report::problem(const Path& path, Place place, const std::string& message, std::string hint) {
  paths_.insert(to_string(path));
  if (!open()) return;
  Error error = Problem{path, message, std::move(hint)}.error();
  problems_.push_back(error.at(location(place)));
}

void Report::warning(const Path& path, Place place, const std::string& message) {
  if (warnings_.size() >= kMost) return;
  warnings_.push_back({to_string(path) + ": " + message, location(place)});
}

bool Report::knows(const Path& path) const {
  if (paths_.contains("")) return true;  // the whole file
  for (Path part = path; !part.empty(); part.pop_back()) {
    if (paths_.contains(to_string(part))) return true;
  }
  return false;
}

void Report::finish() {
  if (problems_.empty()) return;
  std::stable_sort(problems_.begin(), problems_.end(), [](const Error& a, const Error& b) {
    return order(a.location().value_or(Location{})) < order(b.location().value_or(Location{}));
  });
  throw SpecError(std::move(problems_));
}

std::vector<Warning> Report::take_warnings() {
  std::stable_sort(warnings_.begin(), warnings_.end(), [](const Warning& a, const Warning& b) {
    return order(a.location) < order(b.location);
  });
  return std::move(warnings_);
}

}  // namespace spec
}  // namespace dtrain
