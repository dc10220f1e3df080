#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>

#include "launcher/core/clock.hpp"
#include "launcher/files/store.hpp"

// Disk comes back: what no job needs any more is removed from a content store, the least recently
// used first.
//
// Nothing that somebody is about to use goes, though nobody asks a collection's leave: has() notes
// the time of each use on the blob (its time of access, to kUseNoted), and what was used since
// `gathered` less `grace` stays. So who finds content and then names it among `trees` (a job, an
// attempt) is safe when the second follows the first within the grace, and who collects gathers
// `trees` first. Long uploads name what they have brought so far in `blobs`.
namespace dtrain {

inline constexpr std::chrono::hours kContentGrace{1};          // of a collection by the clock
inline constexpr std::chrono::minutes kAskedContentGrace{1};   // of one that a person asks for
inline constexpr std::chrono::hours kPartialContentGrace{24};  // of what broke off half way

struct CollectionOptions {
  std::set<std::string> trees;  // in use: they, all that they name, and their bundles stay
  std::set<std::string> blobs;  // in use besides
  WallTime gathered;            // when those two were gathered
  // Least of all kAskedContentGrace: shorter is not safe.
  std::chrono::seconds grace = kContentGrace;
  std::chrono::seconds partial_grace = kPartialContentGrace;
  std::uint64_t keep = 0;  // bytes of blobs that nothing needs, and that stay for the next job
  bool dry_run = false;
};

struct Collection {
  std::uint64_t blobs = 0;       // removed, or to be removed with a dry run
  std::uint64_t blob_bytes = 0;  // that the disk gets back: what has another link counts nothing
  std::uint64_t partials = 0;    // files and folders that were begun and not ended
  std::uint64_t partial_bytes = 0;
  std::uint64_t unneeded_bytes = 0;  // of blobs that nothing needs and that stay
};

// Takes its time: for a thread of its own. Throws Error, and has then removed nothing or a part,
// when a tree that is in use cannot be read for another reason than that it is not there.
Collection collect_content(const ContentStore& store, const CollectionOptions& options);

}  // namespace dtrain
