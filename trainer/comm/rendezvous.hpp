#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "trainer/comm/memory.hpp"
#include "trainer/core/files.hpp"

namespace dtrain::train::comm {

// What the ranks of a group can tell each other before they share memory: a c10d::Store under a
// prefix of the group's own, or a map in a test. get() waits until the key is there and throws when
// it does not come; has() does not wait.
struct KeyValue {
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::string(const std::string& key)> get;
  std::function<bool(const std::string& key)> has;
};

// What a rank holds of each other rank.
struct Peer {
  // Readable when the peer is gone: its pidfd. On kernels before 5.3, which have none, the socket
  // between a rank and rank 0; the others learn of a death from rank 0 then.
  FileDescriptor life;
  Mapping heap;  // the peer's heap; for this rank's own entry it is empty
};

struct Meeting {
  Mapping control;          // the group's own memory, made by rank 0, zeroed
  std::vector<Peer> peers;  // by rank; this rank's own entry has neither
  std::string problem;      // not empty: the ranks cannot share memory, and why; the same on all
};

// Collective. Rank 0 listens on a unix socket without a name in the file system; the others, told
// its address and a secret through the store, bring their heaps and pidfds, and take everybody's.
// Only processes of the same user are taken.
//
// Never throws because memory cannot be shared: all ranks then learn the same `problem`. Throws
// Error when the store fails or a rank does not come within the timeout.
Meeting meet(const KeyValue& store, int rank, int size, std::size_t control_size,
             std::chrono::milliseconds timeout);

}  // namespace dtrain::train::comm
