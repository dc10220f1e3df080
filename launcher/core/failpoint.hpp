#pragma once

#include <array>
#include <cstddef>
#include <string_view>

// Where a test ends a process, or lets a call fail: before and after each fsync, rename and send of
// the paths that change state. In what is shipped a point is one load of a null pointer, and
// nothing sets that. tests/faults links an agent in which it is set; tests/e2e/failpoints.py
// crashes it at each of these, and looks at what is there afterwards.
namespace dtrain {

inline constexpr std::array kFailpoints = std::to_array<std::string_view>({
    // core/files, of each file that is written whole; the detail is its path
    "file.fsync.before",
    "file.rename.before",
    "file.rename.after",
    "file.fsync.after",
    // a folder that is to be deleted is set aside
    "trash.rename.before",
    "trash.rename.after",
    // the head's database, its copy, and the way back
    "store.commit.before",
    "store.commit.after",
    "copy.fsync.before",
    "copy.rename.before",
    "copy.rename.after",
    "restore.aside.before",
    "restore.rename.before",
    "restore.rename.after",
    // a checkpoint: its shards, its commit, its removal; what a job takes over from another
    "shard.rename.before",
    "shard.rename.after",
    "shard.receive.before",
    "shard.receive.after",
    "checkpoint.rename.before",
    "checkpoint.rename.after",
    "checkpoint.fsync.after",
    "checkpoint.remove.before",
    "checkpoint.remove.after",
    "inherit.rename.before",
    "inherit.rename.after",
    // content: blobs, bundles, what is not needed any more
    "blob.rename.before",
    "blob.rename.after",
    "bundle.rename.before",
    "bundle.rename.after",
    "prune.bundle.before",
    "prune.bundle.after",
    "prune.blob.before",
    "prune.blob.after",
    // identities
    "identity.rename.before",
    "identity.rename.after",
    // the head: a submit's answer, what it tells nodes, what it hears of them; the log it copies
    "submit.answer.before",
    "submit.answer.after",
    "start.send.before",
    "start.send.after",
    "command.send.before",
    "command.send.after",
    "forget.send.before",
    "forget.send.after",
    "event.take.before",
    "event.take.after",
    "log.write.before",
    "log.write.after",
    // the node agent: between head and supervisor
    "start.take.before",
    "start.spawn.before",
    "start.spawn.after",
    "event.pass.before",
    "event.pass.after",
    "command.pass.before",
    "command.pass.after",
    // the supervisor
    "record.rename.before",
    "record.rename.after",
    "workdir.rename.before",
    "workdir.rename.after",
    "ranks.start.before",
    "ranks.start.after",
    "report.take.before",
    "report.answer.before",
    "report.answer.after",
    "event.send.before",
    "event.send.after",
    "ack.take.before",
    "ack.take.after",
});

// The number of one of them: another name does not compile.
class Failpoint {
 public:
  consteval Failpoint(const char* name) : index_(index_of(name)) {}  // NOLINT: as its name
  std::size_t index() const { return index_; }
  std::string_view name() const { return kFailpoints[index_]; }

 private:
  static consteval std::size_t index_of(std::string_view name) {
    for (std::size_t i = 0; i < kFailpoints.size(); ++i) {
      if (kFailpoints[i] == name) return i;
    }
    throw "it is not among kFailpoints";
  }

  std::size_t index_;
};

using ReachedFailpoint = void (*)(Failpoint point, std::string_view detail);
extern ReachedFailpoint reached_failpoint;  // set before a thread that passes one, or never

inline void failpoint(Failpoint point, std::string_view detail = {}) {
  if (reached_failpoint != nullptr) reached_failpoint(point, detail);
}

}  // namespace dtrain
