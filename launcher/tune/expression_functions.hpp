#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/tune/expression.hpp"

// Inside of the expressions: the functions that there are.
namespace dtrain::tune {

struct ExpressionFunction {
  const char* name;
  std::size_t least;  // values that it takes
  std::size_t most;
  bool draws;
  // Of numbers; what is no number in the end is an error.
  double (*of)(const std::vector<double>& values, Stream& chance);
  bool whole;           // the result is a whole number
  bool whole_of_whole;  // it is one if all values are
};
const std::vector<ExpressionFunction>& expression_functions();

[[noreturn]] void expression_error(std::size_t column, const std::string& message);

}  // namespace dtrain::tune
