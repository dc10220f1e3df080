#pragma once

#include <cstddef>
#include <string>

namespace dtrain::head {

// Descriptors that the head of so many nodes needs (RLIMIT_NOFILE). Each node holds two
// connections, one more while it fetches files, and two for each of the two shards that it sends at
// once: the connection, and the file that it becomes; 256 are for the store, the listeners, clients
// and what is only open for a moment. As many again are for logs that followers read
// (LogFiles::room).
constexpr std::size_t head_descriptors(int nodes) {
  return 2 * (7 * static_cast<std::size_t>(nodes) + 256);
}

// What to tell a person whose head may open at most `hard_limit` descriptors (0: not known) and is
// to have so many nodes; empty when that is enough.
std::string too_few_descriptors(std::size_t hard_limit, int nodes);

}  // namespace dtrain::head
