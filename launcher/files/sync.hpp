#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/core/framed.hpp"

// Trees of files from here to there over any stream of frames; no rsync, no shell on either side.
// One side calls send_trees(), the other receive_trees(); both return the same outcome. After an
// Error of either side the stream stands between messages, of use for something else, unless the
// stream itself broke.
//
// What the receiver promises:
// - Nothing outside of the targets is touched, whatever the sender says and whatever links are put
//   in the way.
// - All content is there, in a staging folder on the target's file system, before the first file
//   is renamed into its place; deletions come last. A journal makes a repeat finish what a crash
//   cut off, at any point.
// - Only what an earlier sync wrote is replaced or deleted, and only while it is as it was written.
//   Everything else is left and named.
namespace dtrain {

struct SyncMount {
  std::string target;                // there: absolute, ~, ~/… or relative to the home there
  fs::path source;                   // here: a folder, whose content goes into target, or a file
  std::vector<std::string> exclude;  // see ScanOptions
  std::vector<std::string> filter_files;  // see ScanOptions
  bool remove = true;      // delete there what an earlier sync wrote and is no longer here
  bool overwrite = false;  // also replace files that no sync of ours wrote or that were changed
};

enum class SyncPhase : std::uint8_t { scanning, comparing, sending, applying };
const char* to_string(SyncPhase phase) noexcept;

struct SyncProgress {
  SyncPhase phase = SyncPhase::scanning;
  std::uint64_t files = 0;        // done
  std::uint64_t files_total = 0;  // to be sent
  std::uint64_t bytes = 0;        // of content
  std::uint64_t bytes_total = 0;
};
// Called now and then, on a thread of the transfer; must be quick and not throw.
inline constexpr std::chrono::milliseconds kProgressEvery{50};
using SyncWatcher = std::function<void(const SyncProgress&)>;

struct SyncNote {
  std::string path;    // below the target
  std::string reason;  // "was changed there", "is not of a sync", "a socket"
};

struct MountOutcome {
  std::string target;         // as it was resolved there
  std::uint64_t entries = 0;  // of the source
  std::uint64_t files = 0;    // sent
  std::uint64_t bytes = 0;    // of their content
  std::uint64_t made = 0;     // folders and links
  std::uint64_t touched = 0;  // had the content, got mode or mtime
  std::uint64_t removed = 0;
  std::vector<std::string> sent_paths;     // the first 1000, sorted
  std::vector<std::string> removed_paths;  // the first 1000
  // What was left as it is there, though the source says otherwise. The first 1000; `left_count`
  // has them all.
  std::vector<SyncNote> left;
  std::uint64_t left_count = 0;
  // Files that changed here while they were read: left out this time.
  std::vector<std::string> changing;
  std::vector<SyncNote> left_out;  // what sync does not carry (Scan::left_out)

  bool nothing_done() const noexcept {
    return files == 0 && made == 0 && touched == 0 && removed == 0;
  }
};

// What was left, a sentence each for the first `most`; one more for how many there are, if these
// are not all.
std::vector<std::string> left_in_words(const MountOutcome& mount, std::size_t most = 1000);

struct SyncOutcome {
  std::vector<MountOutcome> mounts;
  std::uint64_t wire_bytes = 0;  // of archives, as sent
  bool dry_run = false;

  // The target is as the source says: nothing was left, nothing changed while it was read.
  bool complete() const noexcept;
};

// An archive as the sender would send it over the stream, for one that goes another way.
struct SyncArchive {
  std::string id;           // the same for all receivers that want the same of the same sources
  std::uint64_t bytes = 0;  // of content
  // Gives its blocks to `sink`, and returns what is said after them.
  std::function<std::string(const std::function<void(std::string_view)>& sink)> read;
};
// It is with the receiver: sealed (sealed.hpp), as a file of ReceiveOptions::parcels.
struct SyncParcel {
  std::string file;  // its name
  std::string key;
  std::string after;  // what `read` returned
};

struct SendOptions {
  bool dry_run = false;  // compare only; files and paths of the outcome say what would be done
  fs::path hash_cache;   // a file; empty: none
  int compression = 1;   // zstd's level, 1 to 3; 0: none
  SyncWatcher watch;
  // Where many receivers want the same: brings an archive to this one by another way, or does not
  // (absent); then it goes over the stream. The receiver must know parcels.
  std::function<std::optional<SyncParcel>(const SyncArchive&)> parcel;
  // The other side ends without us asking it to: how long it may be silent.
  std::chrono::milliseconds silence = FramedStream::kSilence;
};

// Throws Error: of this side (a source that is missing, cannot be read), or of the other, as it was
// thrown there.
SyncOutcome send_trees(FramedStream& stream, const std::vector<SyncMount>& mounts,
                       const SendOptions& options = {});

// Of one step of applying, for tests: "journal", "operation", "record", "end".
using SyncStepHook = std::function<void(const char*)>;

struct ReceiveOptions {
  fs::path home;     // what ~ and relative targets are resolved against; absolute
  fs::path state;    // a folder for records and journals; made when missing
  std::string name;  // of this machine, in messages; empty: none
  // When not empty, these are the targets, one for each mount, whatever the sender says.
  std::vector<fs::path> targets;
  fs::path parcels;  // a folder that archives may lie in; empty: they come by the stream alone
  SyncWatcher watch;
  SyncStepHook hook;
  bool without_openat2 = false;  // for tests
  std::chrono::milliseconds silence = FramedStream::kSilence;
};

SyncOutcome receive_trees(FramedStream& stream, const ReceiveOptions& options);

// The other end of `dtrain sync` as a program's stdio: reads one request,
//   {"role": "receive"}, or
//   {"role": "send", "mounts": [{"source", "exclude", "filter_files", "remove", "overwrite"}…],
//    "dry_run"}
// with sources resolved as targets are, and does it. Returns the exit code; errors go to the other
// side as part of the protocol.
int serve_sync(FramedStream& stream, const ReceiveOptions& options);
// Its requests.
void request_receive(FramedStream& stream);
void request_send(FramedStream& stream, const std::vector<SyncMount>& mounts, bool dry_run);

// "~", "~/x", "x" and "/x" against a home. Error(invalid) for "", "~user", and a NUL.
fs::path resolve_target(const std::string& target, const fs::path& home);

// For `down`: removes what the syncs recorded in `state` wrote and is still as it was written, what
// one that was cut has staged, and the folders they made that are empty then. Gives what was left
// because it was changed.
std::vector<fs::path> remove_synced(const fs::path& state);

}  // namespace dtrain
