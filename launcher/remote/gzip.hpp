#pragma once

#include <string>
#include <string_view>

namespace dtrain {

// As gzip writes it (RFC 1952), in members of 1 MiB of content each, made side by side on all
// processors: what `gzip -dc` reads as one.
std::string gzip_of(std::string_view content);

}  // namespace dtrain
