#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "launcher/core/files.hpp"

namespace dtrain {

// SHA-256 of bytes as they come. Any thread, one at a time.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void add(std::string_view bytes);
  // 64 hexadecimal digits, lower case; nothing may be added after.
  std::string hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// The sum of a regular file's bytes, and how many they were. Throws Error.
struct FileSum {
  std::uint64_t size = 0;  // bytes
  std::string sha256;
};
FileSum sum_file(const fs::path& path);
// The same from where it is read next to its end.
FileSum sum_open(int fd);

// 64 hexadecimal digits in lower case.
bool is_sha256(std::string_view text) noexcept;

}  // namespace dtrain
