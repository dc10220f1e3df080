#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/checkpoint/safetensors.hpp"

namespace dtrain::train {

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of the text; offsets not checked yet
  std::map<std::string, std::string> metadata;
};

// Reads the JSON of a header as it streams by, so that depth and memory are bounded by what a
// header may hold. Refuses, with an Error that says what and which tensor: anything that is not
// such a header, a name or key twice, an unknown or missing key, a negative or fractional number,
// more than 64 dimensions.
SafetensorsHeader parse_safetensors_header(std::string_view text);

}  // namespace dtrain::train
