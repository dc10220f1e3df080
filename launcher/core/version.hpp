#pragma once

#include <string_view>

namespace dtrain {

// Whether version `a` is newer than `b`, by the order of semantic versions: 0.9.0 < 0.10.0-rc.1 <
// 0.10.0-rc.2 < 0.10.0 = 0.10.0+debian1. What is no such version is neither newer nor older.
bool is_newer_version(std::string_view a, std::string_view b);

}  // namespace dtrain
