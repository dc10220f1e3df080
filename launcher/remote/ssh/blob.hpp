#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The few shapes that SSH's files and the key agent's protocol are made of (RFC 4251 §5).
namespace dtrain::ssh {

// Empty when it is no base64, or is that of nothing.
std::string decode_base64(std::string_view text);
std::string encode_base64(std::string_view bytes);

// Reads from the front; absent at the end or when a length lies.
class BlobReader {
 public:
  explicit BlobReader(std::string_view bytes) : bytes_(bytes) {}
  std::optional<std::uint32_t> number();
  std::optional<std::string_view> text();  // its length and its bytes
  std::string_view rest() const { return bytes_; }

 private:
  std::string_view bytes_;
};

void put_number(std::string& to, std::uint32_t number);
void put_text(std::string& to, std::string_view text);

}  // namespace dtrain::ssh
