#pragma once

#include <charconv>
#include <string>

#include <CLI/CLI.hpp>

namespace dtrain::cli {

// Of an option's value: a whole number, not less than `least`.
inline CLI::Validator at_least(int least) {
  return CLI::Validator(
      [least](const std::string& text) {
        int value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc{} && end == text.data() + text.size() && value >= least) {
          return std::string();
        }
        return "must be a whole number from " + std::to_string(least) + " on, not " + text;
      },
      "");
}

}  // namespace dtrain::cli
