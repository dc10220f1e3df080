#pragma once

#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "launcher/files/content_tree.hpp"
#include "launcher/files/file_facts.hpp"
#include "launcher/files/store.hpp"
#include "launcher/files/sync.hpp"

// The sources of some mounts as one tree by content, for machines that get them from a content
// store. The i-th lies below "i/"; what such a tree leaves out, modes and files' times of change,
// is said by a file of its own beside them. Unpacked, a folder can be entered by its owner whatever
// its mode was.
namespace dtrain {

struct MountPack {
  ContentTree tree;
  std::map<std::string, fs::path> files;  // by sum: where to read its bytes
  std::string stats;                      // the bytes of that file of its own
  std::string stats_sum;
  std::vector<std::string> sources;  // where each mount's source lies in the tree
  std::vector<std::string> skipped;  // sockets, devices, FIFOs: named, not packed
};

// By the rules of each mount of what is left out. Throws Error as take_snapshot().
MountPack pack_mounts(const std::vector<SyncMount>& mounts, FileFactsCache& cache,
                      const std::stop_token& stop = {});

// Makes `folder`, which must not be there. Throws Error as make_copy(); Error(invalid) for a tree
// that pack_mounts() did not make.
void unpack_mounts(const ContentStore& store, const ContentTree& tree, const fs::path& folder);

}  // namespace dtrain
