#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/files.hpp"

namespace dtrain::cli {

// One file to bring here.
struct RemoteFile {
  std::string path;  // relative, as the head names it
  std::uint64_t size = 0;
  std::optional<std::string> sha256;  // absent for what may still grow
};

enum class Pulled : std::uint8_t { already_here, resumed, whole };

// The path below `folder` for a name from outside; throws Error(denied) for one that would leave
// it.
fs::path safe_below(const fs::path& folder, const std::string& relative);

// The hexadecimal SHA-256 of a file.
std::string sha256_of(const fs::path& file);

// Brings a file to `target`: into `target`.part, going on where an interrupted pull stopped, then
// checked by size and sum, fsynced and renamed. `fetch` gives the bytes from an offset on. A part
// whose sum is wrong is fetched anew once; then Error(failed).
using Fetch =
    std::function<void(std::uint64_t offset, const std::function<void(std::string_view)>& sink)>;
Pulled pull_file(const RemoteFile& file, const fs::path& target, const Fetch& fetch);

}  // namespace dtrain::cli
