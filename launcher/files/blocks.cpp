#include "launcher/files/blocks.hpp"

#include <zstd.h>

#include <array>

#include "launcher/core/error.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kSmall = 256;  // too small to be worth it
constexpr std::size_t kSample = 8192;
constexpr std::size_t kSamples = 4;

ZSTD_CCtx* compressor(void* context) {
  return static_cast<ZSTD_CCtx*>(context);
}

}  // namespace

Packer::Packer(int level) : context_(ZSTD_createCCtx()), level_(level) {
  if (context_ == nullptr) throw std::bad_alloc();
}

Packer::~Packer() {
  ZSTD_freeCCtx(compressor(context_));
}

bool Packer::worth_it(std::string_view bytes) {
  if (level_ <= 0 || bytes.size() < kSmall) return false;
  if (bytes.size() <= kSample * kSamples * 2) return true;
  std::array<char, kSample + kSample / 8 + 512> out;
  std::size_t packed = 0;
  for (std::size_t i = 0; i < kSamples; ++i) {
    const std::string_view sample = bytes.substr((bytes.size() - kSample) / (kSamples - 1) * i);
    const std::size_t size =
        ZSTD_compressCCtx(compressor(context_), out.data(), out.size(), sample.data(), kSample, 1);
    packed += ZSTD_isError(size) != 0 ? kSample : size;
  }
  return packed < kSample * kSamples * 9 / 10;
}

std::string Packer::pack(std::string block) {
  const std::string_view bytes = std::string_view(block).substr(1);
  if (!worth_it(bytes)) return block;
  std::string packed(1 + ZSTD_compressBound(bytes.size()), kZstdBlock);
  const std::size_t size = ZSTD_compressCCtx(compressor(context_), packed.data() + 1,
                                             packed.size() - 1, bytes.data(), bytes.size(), level_);
  if (ZSTD_isError(size) != 0 || size >= bytes.size()) return block;
  packed.resize(1 + size);
  return packed;
}

Unpacker::Unpacker() : context_(ZSTD_createDCtx()) {
  if (context_ == nullptr) throw std::bad_alloc();
}

Unpacker::~Unpacker() {
  ZSTD_freeDCtx(static_cast<ZSTD_DCtx*>(context_));
}

std::string Unpacker::unpack(std::string block) {
  const auto damaged = [] {
    return Error(ErrorCode::invalid, "the other side sends a block that is damaged");
  };
  if (block.empty() || block.size() > 2 * kBlockSize) throw damaged();
  if (block.front() == kPlainBlock) {
    if (block.size() > kBlockSize + 1) throw damaged();
    return block;
  }
  if (block.front() != kZstdBlock) throw damaged();
  const unsigned long long size = ZSTD_getFrameContentSize(block.data() + 1, block.size() - 1);
  if (size > kBlockSize) throw damaged();  // the values for errors are larger still
  std::string bytes(1 + static_cast<std::size_t>(size), kPlainBlock);
  const std::size_t got = ZSTD_decompressDCtx(static_cast<ZSTD_DCtx*>(context_), bytes.data() + 1,
                                              bytes.size() - 1, block.data() + 1, block.size() - 1);
  if (ZSTD_isError(got) != 0 || got != size) throw damaged();
  return bytes;
}

}  // namespace dtrain
