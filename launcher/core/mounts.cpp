#include "launcher/core/mounts.hpp"

#include <cstdlib>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

// Space, tab, newline and backslash are three octal digits.
std::string unescaped(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      plain +=
          static_cast<char>(std::strtol(std::string(text.substr(i + 1, 3)).c_str(), nullptr, 8));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

}  // namespace

std::vector<Mount> mounts(const fs::path& proc) {
  std::vector<Mount> found;
  const auto text = read_file_if_there(proc / "mountinfo");
  for (const std::string& line : split(text.value_or(""), '\n')) {
    const std::vector<std::string> words = split(line, ' ');
    // Behind the first six come words of any number, then a dash.
    std::size_t dash = 6;
    while (dash < words.size() && words[dash] != "-") ++dash;
    if (dash + 1 >= words.size()) continue;
    found.push_back({unescaped(words[3]), unescaped(words[4]), words[dash + 1]});
  }
  return found;
}

void refuse_mounts(const fs::path& tree) {
  std::error_code failed;
  if (!fs::is_directory(fs::symlink_status(tree, failed))) return;
  const std::string place = fs::canonical(tree, failed).string();
  if (failed == std::errc::no_such_file_or_directory) return;  // gone meanwhile
  if (failed) {
    throw Error(ErrorCode::io, "cannot find out whether something is mounted in " +
                                   printable_path(tree) + ": " + failed.message());
  }
  const std::vector<Mount> all = mounts();
  // The newest, which can be unmounted before the others.
  for (auto mount = all.rbegin(); mount != all.rend(); ++mount) {
    if (mount->point != place && !mount->point.starts_with(place + "/")) continue;
    const std::string point = printable_path(mount->point);
    throw Error(ErrorCode::conflict,
                "cannot remove " + printable_path(tree) + ": something is mounted at " + point +
                    ", whose files would go too; unmount it first (umount " + point + ")");
  }
}

}  // namespace dtrain
