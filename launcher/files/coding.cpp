#include "launcher/files/coding.hpp"

#include "launcher/core/error.hpp"

namespace dtrain {

void ByteReader::damaged(const char* how) const {
  throw Error(ErrorCode::invalid, std::string(name_) + " is damaged: " + how);
}

std::uint64_t ByteReader::number() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (bytes_.empty()) damaged("it ends early");
    const auto byte = static_cast<unsigned char>(bytes_.front());
    bytes_.remove_prefix(1);
    const std::uint64_t part = byte & 0x7f;
    if (shift == 63 && part > 1) damaged("a number is too large");
    value |= part << shift;
    if ((byte & 0x80) != 0) continue;
    if (part == 0 && shift > 0) damaged("a number has a form of its own");
    return value;
  }
  damaged("a number is too large");
}

std::int64_t ByteReader::signed_number() {
  const std::uint64_t value = number();
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}

std::uint64_t ByteReader::number_up_to(std::uint64_t limit) {
  const std::uint64_t value = number();
  if (value > limit) damaged("a number is too large");
  return value;
}

std::string_view ByteReader::raw(std::size_t size) {
  if (size > bytes_.size()) damaged("it ends early");
  const std::string_view part = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  return part;
}

std::string_view ByteReader::text(std::size_t limit) {
  const std::uint64_t size = number();
  if (size > limit) damaged("a text is too long");
  return raw(static_cast<std::size_t>(size));
}

void ByteReader::expect_end() {
  if (!bytes_.empty()) damaged("there is more than there should be");
}

std::string bytes_of_hex(const std::string& hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    out += static_cast<char>(digit(hex[i]) << 4 | digit(hex[i + 1]));
  }
  return out;
}

}  // namespace dtrain
