// What is read as a tree has one text, names nothing outside of its folder, and nothing below a
// link.

#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/files/content_tree.hpp"
#include "launcher/files/manifest.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dtrain::ContentTree tree;
  try {
    tree = dtrain::content_tree_from_text({reinterpret_cast<const char*>(data), size});
  } catch (const dtrain::Error&) {
    return 0;
  }
  std::set<std::string> solid;
  for (const dtrain::ContentEntry& entry : tree.entries) {
    if (!dtrain::is_plain_relative_path(entry.path)) std::abort();
    for (std::size_t at = entry.path.find('/'); at != std::string::npos;
         at = entry.path.find('/', at + 1)) {
      if (solid.contains(entry.path.substr(0, at))) std::abort();
    }
    if (entry.kind != dtrain::ContentEntry::Kind::folder) solid.insert(entry.path);
  }
  if (dtrain::content_tree_from_text(dtrain::to_text(tree)) != tree) std::abort();
  return 0;
}
