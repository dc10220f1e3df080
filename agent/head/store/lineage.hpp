#pragma once

#include <climits>
#include <string>

#include "agent/head/store/checkpoints.hpp"
#include "launcher/files/store.hpp"

// How a job's storage begins with the checkpoints of an ended job, or with one from elsewhere that
// its first attempt starts from. Files are shared by hard links where the file system has them,
// else copied: committed files are never changed, and each job deletes its own names alone, so that
// neither can lose the other's. On a worker's thread, as checkpoints.hpp. Throws Error.
namespace dtrain::head {

// Every committed checkpoint of `from` becomes one of `to` too, with its number; what they are is
// answered, and what of `from` is not whole. A repeat is harmless.
StorageScan inherit_checkpoints(const fs::path& from, const fs::path& to);

// Where the checkpoint lies that a job starts from; it is not one of the job's own.
fs::path start_folder(const fs::path& storage);
// Its number on a node that does not see the head's storage, which no checkpoint of a job has.
inline constexpr int kStartNumber = INT_MAX;
// Error(failed) when `folder` is no whole committed checkpoint.
void check_committed(const fs::path& folder);
// Makes the start folder from a committed checkpoint on this machine.
void share_start(const fs::path& checkpoint, const fs::path& storage);
// The same from what was sent.
void unpack_start(const ContentStore& store, const std::string& tree, const fs::path& storage);

}  // namespace dtrain::head
