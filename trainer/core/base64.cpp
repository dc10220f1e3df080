#include "trainer/core/base64.hpp"

#include <openssl/evp.h>

#include "trainer/core/error.hpp"

namespace dtrain::train {

std::string to_base64(std::span<const std::byte> bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // EVP writes a final NUL
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

std::vector<std::byte> from_base64(const std::string& text) {
  std::vector<std::byte> bytes(text.size() / 4 * 3);
  const int size = text.size() % 4 != 0
                       ? -1
                       : EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                         reinterpret_cast<const unsigned char*>(text.data()),
                                         static_cast<int>(text.size()));
  if (size < 0) throw Error("not base64");
  bytes.resize(static_cast<std::size_t>(size));
  // EVP counts the padding as bytes.
  for (std::size_t i = text.size(); i > 0 && text[i - 1] == '=' && !bytes.empty(); --i) {
    bytes.pop_back();
  }
  return bytes;
}

}  // namespace dtrain::train
