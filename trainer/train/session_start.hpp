#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "trainer/checkpoint/store.hpp"
#include "trainer/train/context.hpp"

// What the ranks of a session find out together before they train. All of it is collective.
namespace dtrain::train {

// Makes one rank's trouble every rank's: all throw Error, with the words of the first rank that has
// any.
void agree(Context& context, const std::optional<std::string>& trouble);

// That all ranks see what rank 0 writes in `storage`: without a launcher that collects shards, a
// checkpoint needs that. Looks for as long as `limit`, since network file systems may be late.
// Throws Error on all ranks, naming rank, node and folder. Says nothing where rank 0 cannot write:
// the first checkpoint does, at once.
void probe_storage(Context& context, const std::filesystem::path& storage,
                   std::chrono::milliseconds limit);

// Where a checkpoint to resume from may be. One of the two, or neither.
struct ResumeFrom {
  std::optional<std::filesystem::path> checkpoint;  // this one, as the launcher says
  std::optional<std::filesystem::path> storage;     // the newest one in there
  // Whether older ones beside `checkpoint` will do where it is damaged.
  bool falls_back = false;
};

// The checkpoint, open and its sums checked (by the ranks of a node together), or nothing where
// there is none. A damaged one (DamagedCheckpoint on any rank) is told to `warn`, and the one
// before it is taken; in `storage` it is then renamed to checkpoint_N.bad, which nobody reads or
// removes. Throws Error where all are damaged, and where one cannot be read.
std::optional<Checkpoint> choose_checkpoint(Context& context, const ResumeFrom& from,
                                            const Warn& warn);

}  // namespace dtrain::train
