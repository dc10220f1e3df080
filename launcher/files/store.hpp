#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/files/content_tree.hpp"
#include "launcher/files/sha256.hpp"

// Content by its SHA-256, each once, on one machine:
//
//   ROOT/blobs/ab/abcd…        the bytes; read-only, never changed in place
//   ROOT/incoming/abcd…        a blob that is on its way in; goes on where it broke off
//   ROOT/bundles/TREE/…        trees of bundles, as folders of hard links to blobs
//
// A blob is written to incoming, summed, and renamed when its sum is right: what is in blobs is
// whole. When it is, its time of change is set to one fixed second, which any later write spoils:
// so a damaged blob is seen by a stat, and then read and thrown away. Large blobs are on disk
// before they count; small ones are summed again whenever they are copied out.
//
// Its time of access says when has() was last asked for it: collections (content_collection.hpp) go
// by that.
//
// Any number of threads and processes may use one root at once. Everything throws Error; no space
// is Error(exhausted).
namespace dtrain {

class ContentStore {
 public:
  // Makes nothing yet: folders are made at the first write.
  explicit ContentStore(fs::path root) : root_(std::move(root)) {}

  const fs::path& root() const noexcept { return root_; }
  fs::path blob(const std::string& sha256) const;
  fs::path bundle(const std::string& tree) const { return root_ / "bundles" / tree; }

  // Whole and unspoiled (`size`, where known, is compared), and from now on in use. One stat, and a
  // note of the use if the last one is older than kUseNoted; one that was touched is read, and
  // removed if it is damaged.
  bool has(const std::string& sha256, std::optional<std::uint64_t> size = std::nullopt) const;
  // Bytes of it that an earlier try has left in incoming; what is longer than `size` is removed.
  std::uint64_t partial(const std::string& sha256, std::uint64_t size) const;

  void put(const std::string& sha256, std::string_view bytes) const;
  // All of a blob, its sum checked. Error(not_found) when it is missing or damaged.
  std::string read(const std::string& sha256, std::size_t limit = kContentTextLimit) const;
  ContentTree tree(const std::string& sha256) const { return content_tree_from_text(read(sha256)); }

  // Takes a blob that another store on this machine holds, by a hard link where the file system
  // allows it; false when that store has none.
  bool adopt(const ContentStore& other, const std::string& sha256) const;

 private:
  fs::path root_;
};

inline constexpr std::chrono::seconds kUseNoted{10};

// flock(2) on the store, for the moment in which a use is noted (LOCK_SH) or something that is not
// in use goes (LOCK_EX). Throws Error; a store that is not there cannot be locked.
class ContentLock {
 public:
  ContentLock(const ContentStore& store, int how);

 private:
  UniqueFd fd_;
};

// One blob on its way in.
class BlobWriter {
 public:
  // Goes on behind what an earlier try left, if nobody else is at it; else begins at 0.
  BlobWriter(const ContentStore& store, std::string sha256);
  ~BlobWriter();
  BlobWriter(const BlobWriter&) = delete;
  BlobWriter& operator=(const BlobWriter&) = delete;

  std::uint64_t offset() const noexcept { return offset_; }  // bytes that are there
  void add(std::string_view bytes);
  // The bytes are all there: checks the sum and makes it a blob. Error(failed) for another sum;
  // what was written is gone then.
  void finish();

 private:
  const ContentStore& store_;
  std::string sha256_;
  fs::path path_;
  UniqueFd fd_;
  Sha256 sum_;
  std::uint64_t offset_ = 0;
  bool resumable_ = false;
  bool done_ = false;
};

// The blobs that the tree names and the store lacks, each once.
struct MissingBlob {
  std::string sha256;
  std::uint64_t size = 0;
};
std::vector<MissingBlob> missing_blobs(const ContentStore& store, const ContentTree& tree);

// Makes `target`, which must not be there, from a tree whose blobs are all in the store: the files
// are copies that belong to whoever writes into them (reflinks where the file system has them).
// Built beside it and renamed, so it is there whole or not at all. Error(not_found) names a blob
// that is missing or damaged, which is then removed from the store; Error(conflict) when `stop`
// became true.
void make_copy(const ContentStore& store, const ContentTree& tree, const fs::path& target,
               const std::atomic<bool>* stop = nullptr);

// Makes store.bundle(name) from a tree, of hard links to the blobs, or of copies where there are no
// links. One that is there and unspoiled is left as it is. For what nobody writes into.
// Error(conflict) when `stop` became true.
void make_bundle(const ContentStore& store, const ContentTree& tree, const std::string& name,
                 const std::atomic<bool>* stop = nullptr);

// Throws Error(exhausted) that names both numbers and the folder when `wanted` bytes more do not
// fit its file system.
void check_room(const fs::path& folder, std::uint64_t wanted);
// The decision alone.
void check_room(const fs::path& folder, std::uint64_t wanted, std::uint64_t free);

}  // namespace dtrain
