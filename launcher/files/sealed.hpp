#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

// Blocks as one stream that says nothing to whoever lacks its key, and that nobody without the key
// can change, cut or put in another order: AES-256-GCM (NIST SP 800-38D), each block under the
// number of its place. A key is for one stream. Not for use from several threads.
namespace dtrain {

inline constexpr std::size_t kSealKey = 32;  // bytes
std::string make_seal_key();

class Sealer {
 public:
  // Gives the stream's bytes, in order, to `sink`.
  Sealer(std::string key, std::function<void(std::string_view)> sink);
  void add(std::string_view block);  // not empty
  void finish();

 private:
  std::string key_;
  std::function<void(std::string_view)> sink_;
  std::uint64_t number_ = 0;
};

class Unsealer {
 public:
  // `source` reads exactly so many bytes into a place, and throws when they are not there.
  Unsealer(std::string key, std::size_t limit, std::function<void(char*, std::size_t)> source);
  // The next block, of at most `limit` bytes; absent at the end. Error(invalid) for what no Sealer
  // with this key wrote there.
  std::optional<std::string> next();

 private:
  std::string key_;
  std::size_t limit_;
  std::function<void(char*, std::size_t)> source_;
  std::uint64_t number_ = 0;
};

}  // namespace dtrain
