#include "launcher/files/content_tree.hpp"

#include <algorithm>
#include <cstdint>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/manifest.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain {
namespace {

using nlohmann::json;

constexpr std::size_t kTargetLimit = 4096;

[[noreturn]] void wrong(const std::string& what) {
  throw Error(ErrorCode::invalid, "no tree: " + what);
}

std::string text_member(const json& item, const char* key) {
  const auto found = item.find(key);
  if (found == item.end() || !found->is_string()) wrong(std::string("\"") + key + "\" is no text");
  return found->get<std::string>();
}

ContentEntry entry_from(const json& item) {
  if (!item.is_object()) wrong("an entry is no object");
  ContentEntry entry;
  entry.path = text_member(item, "path");
  if (!is_plain_relative_path(entry.path)) {
    wrong("the path " + printable(entry.path.substr(0, 80), false) + " is not plain");
  }
  if (item.contains("folder")) {
    entry.kind = ContentEntry::Kind::folder;
    entry.mode = 0755;
  } else if (item.contains("link")) {
    entry.kind = ContentEntry::Kind::link;
    entry.target = text_member(item, "link");
    entry.mode = 0777;
    if (entry.target.empty() || entry.target.size() > kTargetLimit ||
        entry.target.find('\0') != std::string::npos) {
      wrong("the link " + printable(entry.path, false) + " leads nowhere");
    }
  } else {
    entry.sha256 = text_member(item, "sha256");
    if (!is_sha256(entry.sha256)) wrong("the sum of " + printable(entry.path, false) + " is none");
    const auto size = item.find("size");
    if (size == item.end() || !size->is_number_unsigned() ||
        size->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      wrong("the size of " + printable(entry.path, false) + " is none");
    }
    entry.size = size->get<std::uint64_t>();
    const auto executable = item.find("executable");
    const bool set = executable != item.end();
    if (set && !executable->is_boolean()) wrong("\"executable\" is neither true nor false");
    entry.mode = set && executable->get<bool>() ? 0755 : 0644;
  }
  return entry;
}

// Sorted as text, "a" comes before "a/b", with "a.b" and the like between them.
void check_order(const std::vector<ContentEntry>& entries) {
  const ContentEntry* last = nullptr;
  std::vector<const ContentEntry*> solid;  // files and links that are above in text
  for (const ContentEntry& entry : entries) {
    if (last != nullptr && last->path >= entry.path) {
      wrong("its paths are not sorted, or one comes twice: " + printable(entry.path, false));
    }
    last = &entry;
    // What cannot be a prefix of this one any more cannot be of later ones either.
    while (!solid.empty() && !entry.path.starts_with(solid.back()->path)) solid.pop_back();
    for (const ContentEntry* one : solid) {
      if (entry.path[one->path.size()] == '/') {
        wrong(printable(entry.path, false) + " lies below what is no folder");
      }
    }
    if (entry.kind != ContentEntry::Kind::folder) solid.push_back(&entry);
  }
}

}  // namespace

std::string to_text(const ContentTree& tree) {
  // By hand, since a tree may have a hundred thousand entries; the strings are json's.
  std::string text = "[";
  for (const ContentEntry& entry : tree.entries) {
    text += text.size() == 1 ? "\n{" : ",\n{";
    switch (entry.kind) {
      case ContentEntry::Kind::folder:
        text += "\"folder\":true";
        break;
      case ContentEntry::Kind::link:
        text += "\"link\":" + json(entry.target).dump();
        break;
      case ContentEntry::Kind::file:
        if ((entry.mode & 0111) != 0) text += "\"executable\":true,";
        text += "\"sha256\":\"" + entry.sha256 + "\",\"size\":" + std::to_string(entry.size);
        break;
    }
    text += ",\"path\":" + json(entry.path).dump() + "}";
  }
  return text + "\n]\n";
}

ContentTree content_tree_from_text(std::string_view text) {
  if (text.size() > kContentTextLimit) wrong("it is larger than " + human_bytes(kContentTextLimit));
  ContentTree tree;
  // An entry at a time: only one is in memory as json, and nothing nests.
  const auto take = [&](int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    if (depth > 1 && (event == Event::object_start || event == Event::array_start)) {
      wrong("it nests");
    }
    if (depth == 0 && event == Event::object_start) wrong("it is no list");
    if (depth == 1 && event == Event::object_end) {
      if (tree.entries.size() == kContentEntryLimit) wrong("it has too many entries");
      tree.entries.push_back(entry_from(parsed));
      return false;
    }
    if (depth == 1 && event == Event::value) wrong("an entry is no object");
    if (depth == 1 && event == Event::array_start) wrong("an entry is no object");
    return true;
  };
  try {
    const json parsed = json::parse(text, take);
    if (!parsed.is_array()) wrong("it is no list");
  } catch (const json::exception& error) {
    wrong(printable(error.what(), false));
  }
  check_order(tree.entries);
  return tree;
}

std::uint64_t total_size(const ContentTree& tree) {
  std::uint64_t total = 0;
  for (const ContentEntry& entry : tree.entries) {
    if (entry.kind == ContentEntry::Kind::file) total += entry.size;
  }
  return total;
}

std::size_t file_count(const ContentTree& tree) {
  return static_cast<std::size_t>(std::count_if(
      tree.entries.begin(), tree.entries.end(),
      [](const ContentEntry& entry) { return entry.kind == ContentEntry::Kind::file; }));
}

}  // namespace dtrain
