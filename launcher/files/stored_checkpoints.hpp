#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/core/files.hpp"

// Committed checkpoints in the head's own storage as they lie on disk, and which of them a person
// has brought home: for what asks before it removes them, with or without a head that runs.
//
//   STORAGE/JOB/checkpoints/checkpoint_N/…
//   STORAGE/JOB/checkpoints/.pulled         {"numbers": [0, 1]}: those that were pulled whole
namespace dtrain {

struct StoredCheckpoints {
  std::string job;
  int count = 0;
  std::uint64_t bytes = 0;
};

// Those that nobody has pulled whole, by job, sorted. A list of pulled ones that cannot be read
// counts as none: better asked once too often. Throws Error where a folder cannot be listed.
std::vector<StoredCheckpoints> unpulled_checkpoints(const fs::path& storage);

// Adds to the list of one job's; `checkpoints` is its folder. Durable when it returns. Throws
// Error.
void mark_pulled(const fs::path& checkpoints, const std::set<int>& numbers);
std::set<int> pulled_checkpoints(const fs::path& checkpoints);

// N of "checkpoint_N"; absent for any other name.
std::optional<int> checkpoint_number(const std::string& folder);

// Of all regular files below it, links not followed, what they take: of a log whose oldest part was
// released only what is left. 0 for one that is not there. A file of several names, as jobs that go
// on with each other have them, counts in each place for its part.
std::uint64_t folder_bytes(const fs::path& folder);

struct FileCount {
  std::size_t files = 0;
  std::uint64_t bytes = 0;
};
// The same, and how many; here a file counts whole for each of its names.
FileCount count_files(const fs::path& folder);

}  // namespace dtrain
