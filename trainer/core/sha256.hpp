#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace dtrain::train {

// SHA-256 over bytes that arrive in pieces. Not for use by two threads at once.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::span<const std::byte> bytes);
  // 64 lower-case hex digits of everything so far. Call it once, at the end.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The sum of a whole file. Throws Error when it cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace dtrain::train
