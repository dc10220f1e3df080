#include "trainer/core/sha256.hpp"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "trainer/core/error.hpp"
#include "trainer/core/files.hpp"

namespace dtrain::train {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() {
  // A program may end while a checkpoint is still written: OpenSSL must not go before it.
  static const bool stays = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr) == 1;
  if (!stays) throw Error("OpenSSL does not start");
  state_ = std::make_unique<State>();
  if (state_->context == nullptr ||
      EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) != 1) {
    throw Error("SHA-256 is not available in this OpenSSL");
  }
}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  if (EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) != 1) {
    throw Error("SHA-256: update failed");
  }
}

std::string Sha256::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  unsigned int size = 0;
  if (EVP_DigestFinal_ex(state_->context, sum.data(), &size) != 1) {
    throw Error("SHA-256: final failed");
  }
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kHex[sum[i] >> 4];
    text += kHex[sum[i] & 15];
  }
  return text;
}

std::string sha256_of_file(const std::filesystem::path& path) {
  const FileDescriptor file = open_file(path, O_RDONLY);
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  Sha256 sum;
  for (;;) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error("cannot read " + path.string(), errno);
    if (got == 0) return sum.finish();
    sum.update({buffer.data(), static_cast<std::size_t>(got)});
  }
}

}  // namespace dtrain::train
