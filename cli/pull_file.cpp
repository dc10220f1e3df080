#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include <openssl/evp.h>

#include "cli/pull.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::cli {
namespace {

std::optional<std::uint64_t> size_of(const fs::path& file) {
  struct stat status {};
  if (::lstat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(status.st_size);
}

// What is there has the right size and sum.
bool right(const RemoteFile& file, const fs::path& path) {
  const auto size = size_of(path);
  if (!size || *size != file.size) return false;
  return !file.sha256 || sha256_of(path) == *file.sha256;
}

}  // namespace

fs::path safe_below(const fs::path& folder, const std::string& relative) {
  const fs::path path(relative);
  bool good = !relative.empty() && path.is_relative() && relative.find('\0') == std::string::npos &&
              path.has_filename();
  for (const fs::path& part : path) {
    if (part == ".." || part == "." || part.empty()) good = false;
  }
  if (!good) {
    throw Error(ErrorCode::denied,
                "the head names a file outside of the job: " + printable(relative, false));
  }
  return folder / path;
}

std::string sha256_of(const fs::path& file) {
  const UniqueFd fd = open_file(file, O_RDONLY);
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free);
  std::array<unsigned char, 65536> piece;
  std::array<unsigned char, 32> sum{};
  bool good = context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  while (good) {
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error("cannot read " + file.string(), errno);
    if (got == 0) break;
    good = EVP_DigestUpdate(context.get(), piece.data(), static_cast<std::size_t>(got)) == 1;
  }
  if (!good || EVP_DigestFinal_ex(context.get(), sum.data(), nullptr) != 1) {
    throw Error(ErrorCode::internal, "SHA-256 failed");
  }
  return to_hex(sum);
}

Pulled pull_file(const RemoteFile& file, const fs::path& target, const Fetch& fetch) {
  if (right(file, target)) return Pulled::already_here;
  std::error_code failed;
  fs::create_directories(target.parent_path(), failed);
  if (failed) throw errno_error("cannot make " + target.parent_path().string(), failed.value());
  const fs::path part = target.string() + ".part";
  bool resumed = false;
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::uint64_t offset = size_of(part).value_or(0);
    // A log that grows is whole only when fetched in one go; a sum says whether pieces fit.
    if (attempt > 0 || offset > file.size) offset = 0;
    resumed = offset > 0;
    const UniqueFd fd =
        open_file(part, O_WRONLY | O_CREAT | O_NOFOLLOW | (offset == 0 ? O_TRUNC : 0), 0644);
    if (::lseek(fd.get(), static_cast<off_t>(offset), SEEK_SET) < 0) {
      throw errno_error("cannot seek in " + part.string(), errno);
    }
    if (offset < file.size || file.size == 0) {
      fetch(offset, [&](std::string_view bytes) { write_all(fd.get(), bytes); });
    }
    if (::fsync(fd.get()) != 0) throw errno_error("cannot write " + part.string(), errno);
    const bool good = file.sha256 ? right(file, part) : size_of(part).value_or(0) >= file.size;
    if (!good) continue;
    if (::rename(part.c_str(), target.c_str()) != 0) {
      throw errno_error("cannot rename " + part.string(), errno);
    }
    return resumed ? Pulled::resumed : Pulled::whole;
  }
  fs::remove(part, failed);
  throw Error(ErrorCode::failed, file.path +
                                     " arrives damaged: its size or SHA-256 is not what "
                                     "its manifest says");
}

}  // namespace dtrain::cli
