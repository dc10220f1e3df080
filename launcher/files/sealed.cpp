#include "launcher/files/sealed.hpp"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <array>
#include <memory>
#include <utility>

#include "launcher/core/error.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kTag = 16;
constexpr std::size_t kLength = 4;  // of a block, big endian; 0 is the end

using Context = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

std::array<unsigned char, 12> nonce_of(std::uint64_t number) {
  std::array<unsigned char, 12> nonce{};
  for (std::size_t i = 0; i < 8; ++i)
    nonce[4 + i] = static_cast<unsigned char>(number >> (56 - 8 * i));
  return nonce;
}

std::string length_of(std::size_t size) {
  std::string bytes(kLength, '\0');
  for (std::size_t i = 0; i < kLength; ++i) bytes[i] = static_cast<char>(size >> (24 - 8 * i));
  return bytes;
}

const unsigned char* raw(const std::string& bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* raw(std::string& bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

void must(int result) {
  if (result != 1) throw Error(ErrorCode::internal, "OpenSSL does not encrypt");
}

void check_key(const std::string& key) {
  if (key.size() != kSealKey) throw Error(ErrorCode::invalid, "a key has another length");
}

}  // namespace

std::string make_seal_key() {
  std::string key(kSealKey, '\0');
  must(RAND_bytes(raw(key), static_cast<int>(key.size())));
  return key;
}

Sealer::Sealer(std::string key, std::function<void(std::string_view)> sink)
    : key_(std::move(key)), sink_(std::move(sink)) {
  check_key(key_);
}

void Sealer::add(std::string_view block) {
  const Context context(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  const std::string length = length_of(block.size());
  const auto nonce = nonce_of(number_++);
  std::string out(block.size() + kTag, '\0');
  int size = 0;
  must(EVP_EncryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, raw(key_), nonce.data()));
  must(EVP_EncryptUpdate(context.get(), nullptr, &size, raw(length), static_cast<int>(kLength)));
  if (!block.empty()) {
    must(EVP_EncryptUpdate(context.get(), raw(out), &size,
                           reinterpret_cast<const unsigned char*>(block.data()),
                           static_cast<int>(block.size())));
  }
  must(EVP_EncryptFinal_ex(context.get(), raw(out) + block.size(), &size));
  must(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, static_cast<int>(kTag),
                           out.data() + block.size()));
  sink_(length);
  sink_(out);
}

void Sealer::finish() {
  add({});
}

Unsealer::Unsealer(std::string key, std::size_t limit,
                   std::function<void(char*, std::size_t)> source)
    : key_(std::move(key)), limit_(limit), source_(std::move(source)) {
  check_key(key_);
}

std::optional<std::string> Unsealer::next() {
  std::string length(kLength, '\0');
  source_(length.data(), length.size());
  std::size_t block = 0;
  for (const char byte : length) block = block << 8 | static_cast<unsigned char>(byte);
  if (block > limit_) throw Error(ErrorCode::invalid, "a sealed block is too long");
  std::string sealed(block + kTag, '\0');
  source_(sealed.data(), sealed.size());
  const Context context(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  const auto nonce = nonce_of(number_++);
  std::string out(block, '\0');
  int size = 0;
  must(EVP_DecryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, raw(key_), nonce.data()));
  must(EVP_DecryptUpdate(context.get(), nullptr, &size, raw(length), static_cast<int>(kLength)));
  if (block > 0) {
    must(EVP_DecryptUpdate(context.get(), raw(out), &size, raw(sealed), static_cast<int>(block)));
  }
  must(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_SET_TAG, static_cast<int>(kTag),
                           sealed.data() + block));
  std::array<unsigned char, kTag> rest{};
  if (EVP_DecryptFinal_ex(context.get(), rest.data(), &size) != 1) {
    throw Error(ErrorCode::invalid, "a sealed block is not what was sealed");
  }
  if (block == 0) return std::nullopt;
  return out;
}

}  // namespace dtrain
