#include "launcher/files/sha256.hpp"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {

struct Sha256::Context {
  Context() : md(EVP_MD_CTX_new()) {}
  ~Context() { EVP_MD_CTX_free(md); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  EVP_MD_CTX* md;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  if (context_->md == nullptr || EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) != 1) {
    throw Error(ErrorCode::internal, "OpenSSL offers no SHA-256");
  }
}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::add(std::string_view bytes) {
  if (EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()) != 1) {
    throw Error(ErrorCode::internal, "OpenSSL cannot compute a sum");
  }
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  if (EVP_DigestFinal_ex(context_->md, digest.data(), &length) != 1) {
    throw Error(ErrorCode::internal, "OpenSSL cannot compute a sum");
  }
  return to_hex({digest.data(), length});
}

FileSum sum_file(const fs::path& path) {
  const UniqueFd fd = open_file(path, O_RDONLY | O_NOFOLLOW);
  return while_doing("reading " + path.string(), [&] { return sum_open(fd.get()); });
}

FileSum sum_open(int fd) {
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  Sha256 sum;
  FileSum result;
  std::vector<char> buffer(std::size_t{256} << 10);
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0) {
      if (errno == EINTR) continue;
      throw errno_error("cannot read a file", errno);
    }
    if (got == 0) break;
    sum.add({buffer.data(), static_cast<std::size_t>(got)});
    result.size += static_cast<std::uint64_t>(got);
  }
  result.sha256 = sum.hex();
  return result;
}

bool is_sha256(std::string_view text) noexcept {
  if (text.size() != 64) return false;
  for (const char c : text) {
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
  }
  return true;
}

}  // namespace dtrain
