#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dtrain {

// Numbers and texts as bytes, for what this folder keeps on disk and sends: numbers in base 128,
// low first; texts with their length in front.
class ByteWriter {
 public:
  void number(std::uint64_t value) {
    while (value >= 0x80) {
      out_ += static_cast<char>(value | 0x80);
      value >>= 7;
    }
    out_ += static_cast<char>(value);
  }
  void signed_number(std::int64_t value) {
    number(static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63));
  }
  void text(std::string_view value) {
    number(value.size());
    out_ += value;
  }
  void raw(std::string_view value) { out_ += value; }

  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// Throws Error(invalid), "NAME is damaged", for what ByteWriter does not write.
class ByteReader {
 public:
  ByteReader(std::string_view bytes, const char* name) : bytes_(bytes), name_(name) {}

  std::uint64_t number();
  std::int64_t signed_number();
  // A number that must not be larger.
  std::uint64_t number_up_to(std::uint64_t limit);
  std::string_view text(std::size_t limit);
  std::string_view raw(std::size_t size);
  void expect_end();
  bool at_end() const noexcept { return bytes_.empty(); }
  [[noreturn]] void damaged(const char* how) const;

 private:
  std::string_view bytes_;
  const char* name_;
};

// The reverse of to_hex(), for what is hexadecimal digits in lower case.
std::string bytes_of_hex(const std::string& hex);

}  // namespace dtrain
