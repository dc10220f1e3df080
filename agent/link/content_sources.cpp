#include "agent/link/content_sources.hpp"

#include <vector>

#include "launcher/core/error.hpp"

namespace dtrain::link {

std::shared_ptr<const ContentSources::Sums> ContentSources::sums_of(const std::string& tree) {
  if (auto known = sums_[tree].lock()) return known;
  std::erase_if(sums_, [](const auto& each) { return each.second.expired(); });
  const std::string text = store_.read(tree);
  const auto sums = std::make_shared<Sums>();
  (*sums)[tree] = text.size();
  for (const ContentEntry& entry : content_tree_from_text(text).entries) {
    if (entry.kind == ContentEntry::Kind::file) (*sums)[entry.sha256] = entry.size;
  }
  sums_[tree] = sums;
  return sums;
}

Source ContentSources::of(const JobContent& content) {
  std::vector<std::shared_ptr<const Sums>> trees;
  for (const std::string& tree : content.trees()) trees.push_back(sums_of(tree));
  return
      [&store = store_, damaged = damaged_, trees = std::move(trees)](const std::string& sha256) {
        for (const auto& sums : trees) {
          const auto found = sums->find(sha256);
          if (found == sums->end()) continue;
          if (!store.has(sha256, found->second)) throw damaged;
          return BlobSender::Source{sha256, store.blob(sha256), 0, found->second, {}};
        }
        throw Error(ErrorCode::denied, "this content is not part of what was granted");
      };
}

}  // namespace dtrain::link
