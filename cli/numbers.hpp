#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "launcher/core/number.hpp"

namespace dtrain::cli {

// Of an option's value: a whole number, not less than `least`.
inline CLI::Validator at_least(int least) {
  return CLI::Validator(
      [least](const std::string& text) {
        const auto value = number_from<int>(text);
        if (value && *value >= least) return std::string();
        return "must be a whole number from " + std::to_string(least) + " on, not " + text;
      },
      "");
}

}  // namespace dtrain::cli
