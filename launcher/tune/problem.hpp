#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/spec/problem.hpp"

// All of what is wrong with a search at once.
namespace dtrain::tune {

using spec::Path;  // {"lr", "uniform", "[0]"}
using spec::Problem;
using spec::to_string;  // "lr.uniform[0]"
using spec::with;

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
