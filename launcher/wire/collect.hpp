#pragma once

#include <set>
#include <string>

#include "launcher/core/files.hpp"
#include "launcher/wire/node.hpp"

namespace dtrain::wire {

// What head and nodes do alike when content is to be collected: the store at `content` is cleared
// of what neither `trees` nor `blobs` name, as `ask` says. For a thread of its own; what goes wrong
// is in the answer.
Collected collect_store(const fs::path& content, std::set<std::string> trees,
                        std::set<std::string> blobs, const CollectAsk& ask);

}  // namespace dtrain::wire
