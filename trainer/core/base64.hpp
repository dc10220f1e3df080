#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace dtrain::train {

std::string to_base64(std::span<const std::byte> bytes);
// Throws Error on anything that to_base64 does not write.
std::vector<std::byte> from_base64(const std::string& text);

}  // namespace dtrain::train
