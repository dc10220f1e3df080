#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/files/sha256.hpp"
#include "launcher/files/store.hpp"

// Many blobs as one stream of bytes, so that ten thousand small files need no round trip each. For
// each: 32 bytes of SHA-256, 8 of offset, 8 of length (big endian), the bytes from that offset on.
// The whole is one zstd frame where both sides agreed on it.
namespace dtrain {

// What one side has and the other wants, from `offset` on.
struct BlobPart {
  std::string sha256;
  std::uint64_t offset = 0;
};

class BlobSender {
 public:
  struct Source {
    std::string sha256;
    fs::path file;
    std::uint64_t offset = 0;
    std::uint64_t size = 0;  // of the whole blob
    std::string text;        // the bytes themselves when there is no file
    int flags = 0;           // of open(2), to read the file
  };
  BlobSender(std::vector<Source> sources, bool zstd);
  ~BlobSender();
  BlobSender(const BlobSender&) = delete;
  BlobSender& operator=(const BlobSender&) = delete;

  static constexpr std::size_t kPiece = std::size_t{64} << 10;
  // The next piece of the stream, at most kPiece bytes; empty at its end. Error(conflict) naming a
  // file that is another than was announced; of one that is sent in part the receiver finds out.
  std::string next();
  std::uint64_t read() const noexcept { return read_; }  // bytes of blobs so far

 private:
  struct Zstd;
  std::string plain(std::size_t limit);

  std::vector<Source> sources_;
  std::unique_ptr<Zstd> zstd_;
  std::size_t at_ = 0;
  bool in_blob_ = false;
  UniqueFd fd_;
  std::optional<Sha256> sum_;  // of a file that is sent whole
  std::uint64_t position_ = 0;
  std::uint64_t read_ = 0;
  bool ended_ = false;
};

class BlobReceiver {
 public:
  // Takes only blobs of `expected`. `arrived`, if any, is told the bytes that each piece brought.
  BlobReceiver(const ContentStore& store, std::map<std::string, std::uint64_t> expected, bool zstd);
  ~BlobReceiver();
  BlobReceiver(const BlobReceiver&) = delete;
  BlobReceiver& operator=(const BlobReceiver&) = delete;

  // Error(invalid) for what is no such stream, Error(failed) for a blob with another sum.
  void take(std::string_view bytes);
  // Error(invalid) when the stream ends in the middle of a blob.
  void finish();
  std::uint64_t received() const noexcept { return received_; }  // bytes of blobs

 private:
  struct Zstd;
  void plain(std::string_view bytes);
  void begin_blob();
  void end_blob();

  const ContentStore& store_;
  std::map<std::string, std::uint64_t> expected_;
  std::unique_ptr<Zstd> zstd_;
  std::string header_;
  std::string sha256_;
  std::unique_ptr<BlobWriter> writer_;  // null: somebody else has brought it, its bytes are dropped
  std::uint64_t left_ = 0;
  bool in_blob_ = false;
  std::uint64_t received_ = 0;
};

}  // namespace dtrain
