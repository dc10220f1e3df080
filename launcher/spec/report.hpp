#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/spec/checks.hpp"
#include "launcher/spec/yaml.hpp"

namespace dtrain::spec {

// A place in the text, counted from 1.
struct Place {
  int line = 0;
  int column = 0;
};

// Gathers what is wrong with one file. At most kMost problems are kept: a person does not read
// more, and a hostile file must not cost more.
class Report {
 public:
  static constexpr std::size_t kMost = 100;

  explicit Report(std::string file) : file_(std::move(file)) {}

  void problem(const Path& path, Place place, const std::string& message, std::string hint = {});
  void warning(const Path& path, Place place, const std::string& message);

  // False once kMost problems are known: the rest need not be looked for.
  bool open() const noexcept { return problems_.size() < kMost; }
  // True if a problem of this key, or of one that contains it, is known.
  bool knows(const Path& path) const;

  Location location(Place place) const { return {file_, place.line, place.column}; }
  // Throws SpecError if there is any problem; in the order of the text.
  void finish();
  std::vector<Warning> take_warnings();

 private:
  std::string file_;
  std::vector<Error> problems_;
  std::vector<Warning> warnings_;
  std::set<std::string> paths_;
};

}  // namespace dtrain::spec
