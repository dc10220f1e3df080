#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Names that people give, where they become part of something that is short.
namespace dtrain {

inline constexpr std::size_t kShortName = 40;  // so that NAME-xxxxxx fits wherever a name fits
inline constexpr std::size_t kClusterNameLength = 255;

// As valid_name() of ids.hpp, but up to kClusterNameLength: where a cluster's name becomes part of
// a path or an id it is cut by short_name().
bool valid_cluster_name(std::string_view text) noexcept;

// `name` itself up to kShortName bytes; a longer one's beginning and a sum of the whole, kShortName
// bytes in all: two long names are two short ones.
std::string short_name(std::string_view name);

// A text in 16 hexadecimal digits (FNV-1a, 64 bit): to tell names apart, not for secrets.
std::string short_sum(std::string_view text);

}  // namespace dtrain
