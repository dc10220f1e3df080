#include "launcher/files/blob_stream.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/coding.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kSum = 32;
constexpr std::size_t kBlobHeader = kSum + 8 + 8;
constexpr int kLevel = 1;

void put_number(std::string& out, std::uint64_t value) {
  for (int shift = 56; shift >= 0; shift -= 8) out += static_cast<char>((value >> shift) & 0xff);
}

std::uint64_t number_at(std::string_view bytes, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  }
  return value;
}

Error changed(const fs::path& file) {
  return Error(ErrorCode::conflict, printable_path(file) + " changed while it was sent");
}

[[noreturn]] void zstd_failed(std::size_t code) {
  throw Error(ErrorCode::invalid,
              std::string("the stream of content is damaged: ") + ZSTD_getErrorName(code));
}

}  // namespace

// ---- Sender

struct BlobSender::Zstd {
  Zstd() : context(ZSTD_createCCtx()) {
    if (context == nullptr) throw Error(ErrorCode::internal, "no memory for zstd");
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, kLevel);
  }
  ~Zstd() { ZSTD_freeCCtx(context); }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;

  ZSTD_CCtx* context;
  std::string input;
  std::size_t used = 0;
  bool input_ended = false;
};

BlobSender::BlobSender(std::vector<Source> sources, bool zstd)
    : sources_(std::move(sources)), zstd_(zstd ? std::make_unique<Zstd>() : nullptr) {}

BlobSender::~BlobSender() = default;

// The stream before compression; empty at its end.
std::string BlobSender::plain(std::size_t limit) {
  std::string out;
  while (out.size() < limit && at_ < sources_.size()) {
    Source& source = sources_[at_];
    if (!in_blob_) {
      if (limit - out.size() < kBlobHeader && !out.empty()) break;
      if (source.offset > source.size) source.offset = 0;
      out += bytes_of_hex(source.sha256);
      put_number(out, source.offset);
      put_number(out, source.size - source.offset);
      // A pipe that stands where a file was keeps nobody waiting: it cannot be read at an offset.
      if (!source.file.empty()) {
        fd_ = open_file(source.file, O_RDONLY | O_NONBLOCK | source.flags);
      }
      sum_.reset();
      if (!source.file.empty() && source.offset == 0) sum_.emplace();
      position_ = source.offset;
      in_blob_ = true;
    }
    while (position_ < source.size && out.size() < limit) {
      const auto want = static_cast<std::size_t>(
          std::min<std::uint64_t>(limit - out.size(), source.size - position_));
      if (source.file.empty()) {
        out.append(source.text, position_, want);
        position_ += want;
        read_ += want;
        continue;
      }
      const std::size_t before = out.size();
      out.resize(before + want);
      const ssize_t got =
          ::pread(fd_.get(), out.data() + before, want, static_cast<off_t>(position_));
      if (got < 0 && errno != EINTR)
        throw errno_error("cannot read " + source.file.string(), errno);
      out.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      if (got == 0) throw changed(source.file);
      if (got > 0) {
        if (sum_) sum_->add(std::string_view(out).substr(before));
        position_ += static_cast<std::uint64_t>(got);
        read_ += static_cast<std::uint64_t>(got);
      }
    }
    if (position_ == source.size) {
      if (sum_ && sum_->hex() != source.sha256) throw changed(source.file);
      in_blob_ = false;
      fd_.reset();
      ++at_;
    }
  }
  return out;
}

std::string BlobSender::next() {
  if (!zstd_) return plain(kPiece);
  if (ended_) return {};
  std::string out(kPiece, '\0');
  ZSTD_outBuffer output{out.data(), out.size(), 0};
  while (output.pos < output.size) {
    Zstd& my = *zstd_;
    if (my.used == my.input.size() && !my.input_ended) {
      my.input = plain(kPiece * 2);
      my.used = 0;
      my.input_ended = my.input.empty();
    }
    ZSTD_inBuffer input{my.input.data(), my.input.size(), my.used};
    const std::size_t left = ZSTD_compressStream2(my.context, &output, &input,
                                                  my.input_ended ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(left) != 0) zstd_failed(left);
    my.used = input.pos;
    if (my.input_ended && left == 0) {
      ended_ = true;
      break;
    }
  }
  out.resize(output.pos);
  return out;
}

// ---- Receiver

struct BlobReceiver::Zstd {
  Zstd() : context(ZSTD_createDCtx()), out(ZSTD_DStreamOutSize(), '\0') {
    if (context == nullptr) throw Error(ErrorCode::internal, "no memory for zstd");
    ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, 23);  // 8 MiB: what our level needs
  }
  ~Zstd() { ZSTD_freeDCtx(context); }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;

  ZSTD_DCtx* context;
  std::string out;
  bool ended = false;
};

BlobReceiver::BlobReceiver(const ContentStore& store, std::map<std::string, std::uint64_t> expected,
                           bool zstd)
    : store_(store),
      expected_(std::move(expected)),
      zstd_(zstd ? std::make_unique<Zstd>() : nullptr) {}

BlobReceiver::~BlobReceiver() = default;

void BlobReceiver::take(std::string_view bytes) {
  if (!zstd_) {
    plain(bytes);
    return;
  }
  ZSTD_inBuffer input{bytes.data(), bytes.size(), 0};
  bool more = true;
  while (input.pos < input.size || more) {
    if (zstd_->ended) {
      if (input.pos == input.size) break;
      throw Error(ErrorCode::invalid, "something follows the stream of content");
    }
    ZSTD_outBuffer output{zstd_->out.data(), zstd_->out.size(), 0};
    const std::size_t left = ZSTD_decompressStream(zstd_->context, &output, &input);
    if (ZSTD_isError(left) != 0) zstd_failed(left);
    plain({zstd_->out.data(), output.pos});
    zstd_->ended = left == 0;
    more = output.pos == output.size;
  }
}

void BlobReceiver::plain(std::string_view bytes) {
  while (!bytes.empty() || (in_blob_ && left_ == 0)) {
    if (!in_blob_) {
      const std::size_t part = std::min(kBlobHeader - header_.size(), bytes.size());
      header_.append(bytes.substr(0, part));
      bytes.remove_prefix(part);
      if (header_.size() == kBlobHeader) begin_blob();
      continue;
    }
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size()));
    if (writer_) writer_->add(bytes.substr(0, part));
    bytes.remove_prefix(part);
    left_ -= part;
    received_ += part;
    if (left_ == 0) end_blob();
  }
}

void BlobReceiver::begin_blob() {
  sha256_ = to_hex({reinterpret_cast<const unsigned char*>(header_.data()), kSum});
  const std::uint64_t offset = number_at(header_, kSum);
  left_ = number_at(header_, kSum + 8);
  header_.clear();
  in_blob_ = true;
  const auto found = expected_.find(sha256_);
  if (found == expected_.end()) {
    throw Error(ErrorCode::invalid, "content that was not asked for: " + sha256_);
  }
  if (left_ > found->second || offset > found->second - left_) {
    throw Error(ErrorCode::invalid, "the content " + sha256_ + " is larger than it was said to be");
  }
  if (store_.has(sha256_)) return;
  writer_ = std::make_unique<BlobWriter>(store_, sha256_);
  // Somebody else was at it since we asked: the rest does not fit ours.
  if (writer_->offset() != offset) writer_.reset();
}

void BlobReceiver::end_blob() {
  in_blob_ = false;
  if (!writer_) return;
  const std::unique_ptr<BlobWriter> writer = std::move(writer_);
  writer->finish();
}

void BlobReceiver::finish() {
  if (in_blob_ || !header_.empty() || (zstd_ && !zstd_->ended)) {
    throw Error(ErrorCode::invalid, "the stream of content ended in its middle");
  }
}

}  // namespace dtrain
