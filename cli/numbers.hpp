#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"

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

// The same, and not more than `most`.
inline CLI::Validator from_to(int least, int most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        const auto value = number_from<int>(text);
        if (value && *value >= least && *value <= most) return std::string();
        return "must be a whole number from " + std::to_string(least) + " to " +
               std::to_string(most) + ", not " + text;
      },
      "");
}

// One of these words, which the option's type names.
inline CLI::Validator one_of(std::vector<std::string> words) {
  return CLI::Validator(
      [words = std::move(words)](const std::string& text) {
        if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
        return "must be one of " + join(words, ", ") + ", not " + text;
      },
      "");
}

}  // namespace dtrain::cli
