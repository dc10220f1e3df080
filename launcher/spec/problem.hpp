#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/error.hpp"

// What is wrong with what a person wrote, with the path of its key, from which a YAML reader knows
// the place in the file.
namespace dtrain::spec {

// Keys and indices from the top of the file: {"env", "RANK"}, {"command", "[0]"}.
using Path = std::vector<std::string>;
std::string to_string(const Path& path);  // "env.RANK", "command[0]"
Path with(Path path, std::string step);

struct Problem {
  Path path;
  std::string message;  // without the path
  std::string hint;     // empty: none

  Error error() const;  // invalid, "env.RANK: message"
};

// A value from outside for a message: printable, in quotes, cut after some 60 bytes.
std::string shown(std::string_view text);

}  // namespace dtrain::spec
