#include "launcher/files/tree.hpp"

#include <algorithm>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/coding.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain {
namespace {

constexpr std::string_view kTreeMagic = "dtrain-tree-1\n";
constexpr std::uint32_t kModeMask = 0777;

// An entry is written as how many folders to go up from the last folder, and its name.
std::size_t depth_of(std::string_view path) {
  return static_cast<std::size_t>(std::count(path.begin(), path.end(), '/'));
}

std::string_view name_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

}  // namespace

std::string encode_tree(const Tree& tree) {
  ByteWriter out;
  out.raw(kTreeMagic);
  out.number(tree.single ? 1 : 0);
  out.number(tree.mode & kModeMask);
  out.number(tree.entries.size());
  std::size_t here = 0;  // depth of the folder that the next entry would be in
  for (const TreeEntry& entry : tree.entries) {
    const std::size_t depth = depth_of(entry.path);
    if (depth > here) throw Error(ErrorCode::internal, "a tree is not in order");
    out.number(here - depth);
    here = entry.kind == EntryKind::folder ? depth + 1 : depth;
    out.text(name_of(entry.path));
    out.number(static_cast<std::uint64_t>(entry.kind));
    if (entry.kind == EntryKind::link) {
      out.text(entry.target);
      continue;
    }
    out.number(entry.mode & kModeMask);
    if (entry.kind == EntryKind::folder) continue;
    out.number(entry.size);
    out.signed_number(entry.mtime_ns);
    out.number(entry.same_as ? *entry.same_as + std::uint64_t{1} : 0);
  }
  return out.take();
}

Tree decode_tree(std::string_view bytes, const TreeLimits& limits) {
  ByteReader in(bytes, "the list of files");
  if (in.raw(kTreeMagic.size()) != kTreeMagic) in.damaged("it is of another version");
  Tree tree;
  tree.single = in.number_up_to(1) == 1;
  tree.mode = static_cast<std::uint32_t>(in.number_up_to(kModeMask));
  const std::uint64_t count = in.number();
  if (count > limits.entries) {
    throw Error(ErrorCode::exhausted,
                "a tree of more than " + std::to_string(limits.entries) + " files");
  }
  tree.entries.reserve(std::min<std::uint64_t>(count, bytes.size() / 4));
  struct Level {
    std::string path;  // "" or ends with '/'
    std::string last;  // the last name in it
  };
  std::vector<Level> levels(1);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t up = in.number_up_to(levels.size() - 1);
    levels.resize(levels.size() - static_cast<std::size_t>(up));
    Level& folder = levels.back();
    const std::string_view name = in.text(limits.name);
    if (!plain_name(name)) in.damaged("a name is no name");
    // Strictly rising names: nothing comes twice.
    if (name <= folder.last) in.damaged("its names are not in order");
    folder.last = name;
    TreeEntry entry;
    entry.path = folder.path + std::string(name);
    if (entry.path.size() > limits.path) in.damaged("a path is too long");
    entry.kind = static_cast<EntryKind>(in.number_up_to(2));
    if (entry.kind == EntryKind::link) {
      entry.target = in.text(limits.target);
      if (entry.target.empty() || entry.target.find('\0') != std::string::npos) {
        in.damaged("a link points to nothing");
      }
    } else {
      entry.mode = static_cast<std::uint32_t>(in.number_up_to(kModeMask));
    }
    if (entry.kind == EntryKind::file) {
      entry.size = in.number_up_to(INT64_MAX);
      entry.mtime_ns = in.signed_number();
      if (const std::uint64_t same = in.number_up_to(i); same > 0) {
        entry.same_as = static_cast<std::uint32_t>(same - 1);
        const TreeEntry& first = tree.entries[*entry.same_as];
        if (first.kind != EntryKind::file || first.same_as || first.size != entry.size ||
            first.mtime_ns != entry.mtime_ns || first.mode != entry.mode) {
          in.damaged("a hard link is not like its file");
        }
      }
    }
    if (entry.kind == EntryKind::folder) {
      if (levels.size() > limits.depth) in.damaged("its folders are too deep");
      levels.push_back({entry.path + "/", {}});
    }
    tree.entries.push_back(std::move(entry));
  }
  in.expect_end();
  if (tree.single && (tree.entries.size() != 1 || tree.entries[0].kind != EntryKind::file)) {
    in.damaged("it should be one file");
  }
  return tree;
}

std::uint64_t total_size(const Tree& tree) noexcept {
  std::uint64_t total = 0;
  for (const TreeEntry& entry : tree.entries) {
    if (!entry.same_as) total += entry.size;
  }
  return total;
}

}  // namespace dtrain
