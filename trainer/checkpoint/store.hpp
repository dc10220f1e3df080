#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "trainer/checkpoint/layout.hpp"
#include "trainer/core/error.hpp"

// Writing, committing and finding checkpoints below a storage path.
namespace dtrain::train {

// One shard of a checkpoint while its files are written. What lay there from an earlier try is
// removed. Nobody takes the shard for whole before finish() has returned.
class ShardWriter {
 public:
  ShardWriter(const std::filesystem::path& storage, int attempt, std::int64_t step, int shard = 0,
              int shards = 1);
  // Without finish() what was written goes again: where a disk is full others need the room.
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  // A new file of the shard at a plain relative path; folders on the way are made. Write to it,
  // then hand it to close().
  FileSink create(const std::string& path) const;
  void close(FileSink& sink);
  // Makes everything durable and writes shard.json.
  void finish();

 private:
  std::filesystem::path folder_;
  ShardRecord record_;
  bool finished_ = false;
};

struct CommitRequest {
  std::string job;
  int attempt = 1;
  std::int64_t step = 0;
  int world_size = 1;
  int shards = 1;
  Metrics metrics;
};

// Turns the finished shards of (attempt, step) into the next checkpoint_N and returns its folder.
// Throws Error, and leaves the shards where they are, when one is missing, a file is missing or
// has another size, or a file is there that no shard lists. One committer at a time.
std::filesystem::path commit_checkpoint(const std::filesystem::path& storage,
                                        const CommitRequest& request);

// Between the writers of one checkpoint's shards, where no launcher collects them: the committer
// waits until all are finished. The shards lie in a folder that all ranks see: it is looked at,
// first every few milliseconds, later ten times a second, and so is `trouble`, which says what
// keeps another writer from finishing, if anything does. Throws Error with its words, after
// `limit`, or when it is asked to stop.
void wait_for_shards(const std::filesystem::path& storage, int attempt, std::int64_t step,
                     int shards, const std::stop_token& stop,
                     const std::function<std::optional<std::string>()>& trouble,
                     std::chrono::milliseconds limit = std::chrono::minutes(30));

// A checkpoint that was committed and is not whole any more: a file is missing, or has another size
// or other content. One that cannot be read is an Error of another type.
class DamagedCheckpoint : public Error {
 public:
  using Error::Error;
};

struct Checkpoint {
  std::filesystem::path folder;
  Manifest manifest;

  // A folder of a program's own files, that report() is to make one of.
  static Checkpoint from_directory(std::filesystem::path folder) { return {std::move(folder), {}}; }
};

// Reads the manifest and checks that every file is there with its size. Throws Error, of a file
// that is not so DamagedCheckpoint.
Checkpoint open_checkpoint(const std::filesystem::path& folder);

// Checks the sums of all files, or, for several processes that share the work, of every
// `parts`-th from `part` on. Throws DamagedCheckpoint that names the first that differs.
void verify_checkpoint(const Checkpoint& checkpoint, int part = 0, int parts = 1);

// What is appended to the name of a damaged checkpoint that was set aside. Its number is not given
// again.
inline constexpr const char* kBadSuffix = ".bad";

// All whole checkpoints, by number; none where there is no folder of them. What is not whole is
// passed over and told to `warn`. Throws Error where the folder, or a manifest, cannot be read.
using Warn = std::function<void(const std::string& message)>;
std::vector<Checkpoint> list_checkpoints(const std::filesystem::path& storage, const Warn& warn);

// The one with the highest number, if any.
std::optional<Checkpoint> newest_checkpoint(const std::filesystem::path& storage, const Warn& warn);

// What is kept: docs/checkpoint_format.md.
struct Retention {
  std::optional<int> num_to_keep;  // all if not set
  std::string score_attribute;     // the newest if empty
  bool higher_is_better = true;
};

// `checkpoints` with the best first; of equals, and without a score, the newer one. Pure.
std::vector<Checkpoint> best_first(std::vector<Checkpoint> checkpoints, const Retention& retention);
// Which of `checkpoints` (by number) go; `in_use` never does: the one that this run began from.
// Pure.
std::vector<std::int64_t> checkpoints_to_remove(const std::vector<Checkpoint>& checkpoints,
                                                const Retention& retention,
                                                std::optional<std::int64_t> in_use = std::nullopt);
// What cannot be removed, or looked at, is told to `warn`, and stays.
void remove_checkpoints(const std::filesystem::path& storage, const Retention& retention,
                        std::optional<std::int64_t> in_use, const Warn& warn);

// Removes what earlier runs left uncommitted. For the one committer, before anyone writes.
void remove_temporaries(const std::filesystem::path& storage);

}  // namespace dtrain::train
