#pragma once

#include <cstdint>
#include <string>

#include "launcher/core/files.hpp"

// A log of which only the newest part is kept. The oldest is released: the file has a hole there,
// so that its size and all offsets stay what they were. Where the kept part begins stands in a file
// beside it, LOG.released, which is durable before anything is released, and which who reads the
// log looks at once something that may be a hole was read: so a hole is never taken for NULs that
// were written, whoever reads meanwhile and whoever is killed. All throw Error with the path.
namespace dtrain {

fs::path released_mark(const fs::path& log);
// Where the kept part begins; 0: nothing was released.
std::uint64_t released_of(const fs::path& log);
// All before `offset` is not there, or may go from now on. Durable when it returns.
void mark_released(const fs::path& log, std::uint64_t offset);

// At most `most` bytes from `offset` on; fewer at the file's end. `file` is for messages.
std::string read_at(int fd, const fs::path& file, std::uint64_t offset, std::size_t most);

struct KeptBytes {
  std::uint64_t offset = 0;  // where they stand: what lies before it, from where was asked, is gone
  std::string bytes;         // empty at the end
};
// At most `most` bytes of the log that `fd` has open, from `offset` on.
KeptBytes read_kept(int fd, const fs::path& log, std::uint64_t offset, std::size_t most);

// Where the kept part of a log is to begin, of which `released` bytes have gone and those before
// `safe` may: so that a little less than `limit` is kept, and not for a few bytes each time.
std::uint64_t release_point(std::uint64_t size, std::uint64_t released, std::uint64_t safe,
                            std::uint64_t limit);

// It moves by so many bytes at least.
inline constexpr std::uint64_t kLeastRelease = std::uint64_t{1} << 20;

struct Release {
  enum class What : std::uint8_t { nothing, some, impossible } what = What::nothing;
  std::string why;  // it is impossible
};
// Releases what is too much of the log, if it is there: of what lies before `safe` alone, and up to
// the beginning of a line where one is near. Its writer may write meanwhile, in this process or in
// another; no two may release. What cannot be released stays, and can be read.
Release hold_to_limit(const fs::path& log, std::uint64_t limit, std::uint64_t safe);

// "[dtrain: 4096 bytes of output are missing here: No space left on device]"
std::string missing_mark(std::uint64_t bytes, const std::string& reason);
inline constexpr const char* kReleasedReason = "released, as log_limit says";

}  // namespace dtrain
