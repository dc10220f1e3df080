#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/clock.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/files/manifest.hpp"

// Checkpoints on disk, by docs/checkpoint_format.md. Everything here reads and writes files, hashes
// and fsyncs, so it runs on the worker's thread. `storage` is a job's DTRAIN_STORAGE_PATH. Throws
// Error.
namespace dtrain::head {

struct CommittedCheckpoint {
  int number = 0;
  fs::path path;
  int attempt = 0;
  std::int64_t step = 0;
  nlohmann::json metrics = nlohmann::json::object();
  WallTime created;
  std::uint64_t size = 0;  // bytes
};

// Committed ones by number. One that is not whole (no manifest, a file missing or of another size)
// is left out and named in `broken`.
struct StorageScan {
  std::vector<CommittedCheckpoint> whole;
  std::vector<std::string> broken;  // sentences
  int highest = -1;                 // number in use, whole or not
};
// Those with numbers of `known` are passed over unread: what is there of them need not be asked.
StorageScan scan_storage(const fs::path& storage, const std::set<int>& known = {});

// Before an attempt: makes the folders, and removes what older attempts left in .tmp.
void clear_temporary(const fs::path& storage, int attempt);

struct ShardReport {
  JobId job;
  int attempt = 1;
  std::int64_t step = 0;
  int shard = 0;
  int shards = 1;
  fs::path path;  // absolute
  bool keep = false;
};

// Puts a reported folder in its place below .tmp and makes its shard.json if it has none: moved,
// with `keep` or from another file system copied. Refused: what is not a folder of this user, what
// holds `forbidden` ones (the storage, the head's root, the job's workdir, the home folder), links
// and anything but regular files, more files than the limits.
void place_shard(const fs::path& storage, const ShardReport& report,
                 const std::vector<fs::path>& forbidden);

// The folder in which a shard is gathered before its checkpoint is committed.
fs::path shard_place(const fs::path& storage, const ShardReport& report);
// As place_shard, for what its writer put in its place: looks there and nowhere else. Refused too
// when a link is on the way from the storage.
void take_placed(const fs::path& storage, const ShardReport& report);

// The shard lies in its place already, whole: a head before us took it.
bool has_shard(const fs::path& storage, const ShardReport& report);
// Where the files of a shard are gathered that comes from another machine; goes with its attempt.
fs::path incoming_folder(const fs::path& storage, const ShardReport& report);
// All files of a shard are there, their sums verified: writes shard.json and puts it in its place.
void take_incoming(const fs::path& storage, const ShardReport& report,
                   const std::vector<FileEntry>& files);
// By which nodes are asked whether they see the same storage; goes before the next attempt.
fs::path token_file(const fs::path& storage, const std::string& token);

struct CommitRequest {
  JobId job;
  int attempt = 1;
  std::int64_t step = 0;
  int shards = 1;
  int world_size = 1;
  nlohmann::json metrics = nlohmann::json::object();
  WallTime created;
  int least_number = 0;  // one more than any number that was ever used
};
// All shards are in their places: checks sizes, writes manifest.json, renames to checkpoint_N,
// with an fsync at each step.
CommittedCheckpoint commit_checkpoint(const fs::path& storage, const CommitRequest& request);

// Removes a committed checkpoint, out of sight at once; a missing one is fine.
void remove_checkpoint(const fs::path& storage, int number);

// Parses and checks a manifest.json; throws Error(invalid).
struct Manifest {
  CommittedCheckpoint checkpoint;  // without path
  std::vector<FileEntry> files;
};
Manifest read_manifest(const fs::path& folder);

fs::path checkpoints_folder(const fs::path& storage);
fs::path checkpoint_folder(const fs::path& storage, int number);
fs::path temporary_folder(const fs::path& storage, int attempt, std::int64_t step);
std::string shard_name(int shard, int shards);

}  // namespace dtrain::head
