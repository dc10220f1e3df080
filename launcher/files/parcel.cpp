#include "launcher/files/parcel.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/files/blocks.hpp"
#include "launcher/files/coding.hpp"

namespace dtrain::sync {
namespace {

// A block that packing does not make smaller is a little larger.
constexpr std::size_t kLongestBlock = kBlockSize + (std::size_t{64} << 10);

UniqueFd take_file(const fs::path& folder, const std::string& name) {
  if (folder.empty() || name.empty() || name.find('/') != std::string::npos) {
    throw Error(ErrorCode::invalid, "the other side names a file that was not asked for");
  }
  const fs::path path = folder / name;
  UniqueFd file = open_file(path, O_RDONLY | O_NOFOLLOW);
  ::unlink(path.c_str());
  return file;
}

}  // namespace

ParcelFile::ParcelFile(const fs::path& folder, const std::string& name, const std::string& hex_key)
    : file_(take_file(folder, name)),
      blocks_(bytes_of_hex(hex_key), kLongestBlock,
              [this](char* to, std::size_t size) { read(to, size); }) {}

void ParcelFile::read(char* to, std::size_t size) const {
  while (size > 0) {
    const ssize_t got = ::read(file_.get(), to, size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error("cannot read what another host gave", errno);
    if (got == 0) throw Error(ErrorCode::invalid, "what another host gave ends too early");
    to += got;
    size -= static_cast<std::size_t>(got);
  }
}

}  // namespace dtrain::sync
