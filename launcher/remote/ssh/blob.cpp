#include "launcher/remote/ssh/blob.hpp"

#include <openssl/evp.h>

namespace dtrain::ssh {

std::string decode_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0 || text.size() > (std::size_t{1} << 24)) return {};
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  if (size < 0) return {};
  std::size_t padding = 0;
  while (padding < 2 && text[text.size() - 1 - padding] == '=') ++padding;
  bytes.resize(static_cast<std::size_t>(size) - padding);
  return bytes;
}

std::string encode_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

std::optional<std::uint32_t> BlobReader::number() {
  if (bytes_.size() < 4) return std::nullopt;
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes_[i]);
  bytes_.remove_prefix(4);
  return value;
}

std::optional<std::string_view> BlobReader::text() {
  const auto size = number();
  if (!size || *size > bytes_.size()) return std::nullopt;
  const std::string_view found = bytes_.substr(0, *size);
  bytes_.remove_prefix(*size);
  return found;
}

void put_number(std::string& to, std::uint32_t number) {
  for (const int shift : {24, 16, 8, 0}) to += static_cast<char>(number >> shift);
}

void put_text(std::string& to, std::string_view text) {
  put_number(to, static_cast<std::uint32_t>(text.size()));
  to += text;
}

}  // namespace dtrain::ssh
