#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/core/error.hpp"

// What is wrong with what a person wrote: all of it at once, each with the path of its key, from
// which a YAML reader knows the place in the file.
namespace dtrain::tune {

using Path = std::vector<std::string>;  // keys and indices from the top: {"lr", "uniform", "[0]"}
Path with(Path path, std::string step);
std::string to_string(const Path& path);  // "lr.uniform[0]"

struct Problem {
  Path path;
  std::string message;  // without the path
  std::string hint;     // empty: none

  Error error() const;  // invalid, "lr.uniform[0]: message"
};

class Problems {
 public:
  static constexpr std::size_t kMost = 100;  // no person reads more; the rest is not kept

  void add(Path path, std::string message, std::string hint = {});
  bool empty() const noexcept { return list_.empty(); }
  const std::vector<Problem>& list() const noexcept { return list_; }
  // Throws one Error(invalid) that says them all, if there is any.
  void check() const;

 private:
  std::vector<Problem> list_;
};

}  // namespace dtrain::tune
