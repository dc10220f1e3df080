#include "agent/head/store/journal.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <span>
#include <vector>

#include "launcher/core/error.hpp"

namespace dtrain::head {
namespace {

// https://www.sqlite.org/fileformat2.html#walformat
constexpr std::size_t kHeader = 32;
constexpr std::size_t kFrameHeader = 24;
constexpr std::size_t kSummed = 24;  // bytes of the header, and 8 of a frame's, that sums cover
constexpr std::size_t kFrameSummed = 8;
constexpr std::uint32_t kMagic = 0x377f0682;  // or with the lowest bit: sums of big-endian words

using Bytes = std::span<const unsigned char>;

std::uint32_t word(Bytes bytes, std::size_t at, bool big = true) {
  const auto byte = [&](std::size_t i) { return std::uint32_t{bytes[at + (big ? i : 3 - i)]}; };
  return byte(0) << 24 | byte(1) << 16 | byte(2) << 8 | byte(3);
}

struct Sum {
  bool big;
  std::uint32_t a = 0;
  std::uint32_t b = 0;

  void add(Bytes bytes) {
    for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      a += word(bytes, i, big) + b;
      b += word(bytes, i + 4, big) + a;
    }
  }
  bool stands_at(Bytes bytes, std::size_t at) const {
    return word(bytes, at) == a && word(bytes, at + 4) == b;
  }
};

// False at the end of the file.
bool fill(int fd, std::span<unsigned char> buffer, const fs::path& file) {
  std::size_t have = 0;
  while (have < buffer.size()) {
    const ssize_t got = ::read(fd, buffer.data() + have, buffer.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error("cannot read " + file.string(), errno);
    if (got == 0) return false;
    have += static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

fs::path journal_of(const fs::path& database) {
  return database.string() + "-wal";
}

Journal read_journal(const fs::path& file) {
  Journal journal;
  if (!fs::exists(file)) return journal;
  const UniqueFd fd = open_file(file, O_RDONLY);
  std::array<unsigned char, kHeader> header{};
  if (!fill(fd.get(), header, file)) return journal;
  const std::uint32_t magic = word(header, 0);
  Sum sum{(magic & 1) != 0};
  sum.add(Bytes(header).first(kSummed));
  const std::size_t page = word(header, 8);
  const bool whole = (magic & ~std::uint32_t{1}) == kMagic && sum.stands_at(header, kSummed) &&
                     page >= 512 && page <= 65536;
  if (!whole) return journal;
  journal.begins = true;
  std::vector<unsigned char> frame(kFrameHeader + page);
  bool as_written = true;
  while (fill(fd.get(), frame, file)) {
    const bool ends_commit = word(frame, 4) != 0;
    const bool of_this_log =
        word(frame, 8) == word(header, 16) && word(frame, 12) == word(header, 20);
    if (as_written) {
      sum.add(Bytes(frame).first(kFrameSummed));
      sum.add(Bytes(frame).subspan(kFrameHeader));
      as_written = of_this_log && sum.stands_at(frame, 16);
    }
    if (!as_written && of_this_log && ends_commit) ++journal.behind;
  }
  return journal;
}

}  // namespace dtrain::head
