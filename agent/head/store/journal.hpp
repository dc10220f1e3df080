#pragma once

#include "launcher/core/files.hpp"

// SQLite's write-ahead log as it lies on the disk, read without SQLite: that takes a log which is
// damaged in its middle, or is not there, for one that ends early, and forgets what comes after
// without a word.
namespace dtrain::head {

struct Journal {
  bool begins = false;  // it is there, with a whole header; it may hold nothing beside
  // Ends of commits that lie behind the first frame that is not as it was written. A power cut
  // may leave one, of a commit that was never acknowledged; only damage leaves more.
  int behind = 0;
};

// Throws Error(io).
Journal read_journal(const fs::path& file);

fs::path journal_of(const fs::path& database);  // head.db-wal

}  // namespace dtrain::head
