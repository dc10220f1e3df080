#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/core/paths.hpp"

// A head that moves: it runs on one machine after the other, its root on storage that they share.
namespace dtrain::head {

// turn.json: whose turn it is to be the head, and whose it was.
struct Turn {
  std::int64_t generation = 0;  // of those that have begun; a start in the same allocation counts
  std::string holder;           // the Slurm job and its start; elsewhere the boot
  bool begun = true;            // it has waited for the one before it
  bool ended = false;           // it ended in order: nothing of it writes any more
  std::vector<std::string> past;
};
Turn read_turn(const paths::HeadRoot& root);  // of none yet: generation 0

// Of this process: its own job's, or boot's. DTRAIN_HEAD_START, which the job's script says, is
// another one in each job, where ids may come again (another Slurm, one that began anew).
std::string turn_holder();

// Of somebody else than `holder`.
bool is_anothers(const Turn& turn, const std::string& holder);

// Two heads at once must not write. The root's lock says so wherever it holds across machines, and
// so does the database's; where it does not, this does: whoever takes the turn of one that has not
// ended in order says so first, waits kSafe, and begins then, while the other looks each kLook
// whether the turn is still its own, and ends at once when it is not. Of two that took it at once
// the later to write has it. A turn that was lost does not come back.
class HeadTurn {
 public:
  // Waits as said. Error(conflict) when this one's turn is over: another is the head by now.
  HeadTurn(paths::HeadRoot root, std::string holder);
  // In order: nothing is written after it.
  ~HeadTurn();
  HeadTurn(const HeadTurn&) = delete;
  HeadTurn& operator=(const HeadTurn&) = delete;

  std::int64_t generation() const { return turn_.generation; }
  bool is_lost() const;
  // False when it is lost. What an older head has written over it is set right.
  bool keep() const;

  static constexpr std::chrono::milliseconds kLook{1000};
  static constexpr std::chrono::milliseconds kSafe{5000};

 private:
  bool is_over(const Turn& now) const;
  std::string text() const;
  void write() const;

  paths::HeadRoot root_;
  Turn turn_;
};

// Ends this process when the turn is lost, from a thread of its own.
class TurnGuard {
 public:
  explicit TurnGuard(const HeadTurn& turn);

 private:
  std::jthread thread_;
};

// What a head has for as long as it runs: the root's lock and, where it moves, its turn. The turn
// of another is taken before its lock is waited for: one that is cut off from Slurm, and not from
// storage, ends by that alone. A second head of the same holder waits for the lock first.
class HeadHold {
 public:
  // Waits for the other's end. Error as of HeadTurn, and where the lock cannot be had at all.
  HeadHold(const paths::HeadRoot& root, bool moves, const std::string& holder);

 private:
  // The turn's end is the last of all, under the lock still.
  std::optional<FileLock> lock_;
  std::unique_ptr<HeadTurn> turn_;
  std::optional<TurnGuard> guard_;
};

// HeadRoot::place(), "PORT ADDRESS…" on a line: where nodes and those that join find the head now.
void write_place(const paths::HeadRoot& root, int port);

}  // namespace dtrain::head
