#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/framed.hpp"
#include "launcher/files/sync.hpp"

// What the two sides of a sync say to each other. S is the sender, R the receiver:
//
//   S  {"type": "sync", "version": 1, "dry_run", "mounts": [{"target", "name", "single", "tree":
//   its
//      hash, "entries", "bytes", "remove", "overwrite"}…]}
//   R  {"type": "need", "trees": [numbers of mounts]}; for none of them R goes on with its result
//   S  {"type": "tree", "mount"} and its encoding as a blob, for each
//   R  {"type": "hash"} and a blob: names of files whose sum it wants; or not, when there are none
//   S  {"type": "hashes"} and a blob: 32 bytes for each, zeros for one that cannot be read now
//   R  {"type": "want", "files", "bytes"} and a blob: names of files; none in a dry run
//   S  {"type": "archive", "bytes": [space that each mount takes]}, blocks of the archive in binary
//      frames, then {"type": "sent", "changing": [[mount, entry]…]}; or with "parcel": {"file",
//      "key"}, where R has the blocks already, and no frames
//   R  {"type": "result", …}
//   S  {"type": "done"}
//
// Names are pairs of numbers, of the mount and of the entry in its tree. A blob is {"type": "blob",
// "size"} and packed blocks in binary frames until it is whole. Either side may at any time send
// {"type": "alive"}, which means nothing, or {"type": "error", …} instead of what is expected; the
// other answers that with {"type": "done"}. So the stream always ends between messages.
namespace dtrain::sync {

inline constexpr int kVersion = 1;
inline constexpr std::size_t kBlobLimit = std::size_t{512} << 20;

using nlohmann::json;

// An Error that the other side has thrown.
class PeerError : public Error {
 public:
  using Error::Error;
  explicit PeerError(const Error& error) : Error(error) {}
};

// One side of the conversation. While it lives, a thread says "alive" when there is nothing else to
// say, so that the other side may tell a long computation from a broken connection.
class Wire {
 public:
  Wire(FramedStream& stream, std::chrono::milliseconds silence);
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  void say(const json& message);
  void bytes(std::string_view bytes);  // one binary frame
  void blob(std::string_view bytes);

  // The next message but "alive". Throws PeerError for an "error", Error(unreachable) at the end.
  FramedStream::Message next();
  // The next message, which must be of this type.
  json expect(const char* type);
  json parse(const FramedStream::Message& message);
  std::string blob();

  // Throws PeerError when the other side has sent an error already; else goes on at once. For who
  // sends for long.
  void throw_if_refused();

  // The conversation's end: done() of the sender, after the result; result() of the receiver, which
  // waits for that; fail() while an exception is handled: tells the other side, or answers it, and
  // throws the Error that is to be seen.
  void done();
  void result(const json& message);
  [[noreturn]] void fail();

 private:
  void quiet();
  void until_done();

  FramedStream& stream_;
  std::chrono::milliseconds silence_;
  std::mutex sending_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread alive_;
};

// Names of files, as messages hold them.
struct EntryName {
  std::uint32_t mount = 0;
  std::uint32_t entry = 0;
};
std::string encode_names(const std::vector<EntryName>& names);
std::vector<EntryName> decode_names(std::string_view bytes);

// At most `most` of each list.
json outcome_to_json(SyncOutcome outcome, std::size_t most = SIZE_MAX);
SyncOutcome outcome_from_json(const json& message);

// Throws Error(invalid) for a path that a message cannot hold: JSON is UTF-8, and another name
// would come in its place. Names within a tree are bytes.
void refuse_unless_utf8(const fs::path& path);

// Text for JSON: what is no UTF-8 is escaped.
std::string as_text(std::string_view bytes);

}  // namespace dtrain::sync
