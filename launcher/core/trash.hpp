#pragma once

#include <atomic>

#include "launcher/core/files.hpp"
#include "launcher/core/worker.hpp"

namespace dtrain {

// Deletes trees of any size without keeping anybody waiting: they are renamed into a folder at
// once, and unlinked from there by a thread of low priority. A process that ends in the middle
// leaves the rest in the folder, and the next one goes on with it.
class Trash {
 public:
  // `folder` is made when something is thrown away; on the file system of what is.
  explicit Trash(fs::path folder);
  // Waits for one unlink at most.
  ~Trash();

  // When it returns nothing is at `path`; nothing was there is fine too. Throws Error,
  // also when something is mounted in it: then it stays where it is.
  void take(const fs::path& path);

 private:
  void unlink_all(const fs::path& tree);

  fs::path folder_;
  std::atomic<bool> ending_{false};
  Worker worker_;
};

}  // namespace dtrain
