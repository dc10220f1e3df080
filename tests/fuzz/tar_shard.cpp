// A tar shard from a stranger is opened, every member within the file, or refused.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "trainer/core/error.hpp"
#include "trainer/data/shards.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int file = ::memfd_create("shard", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (::ftruncate(file, 0) != 0 || ::pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) {
    std::abort();
  }
  try {
    const dtrain::train::TarShard shard(path);
    std::uint64_t sum = 0;
    std::vector<std::byte> bytes;
    for (std::int64_t i = 0; i < shard.samples(); ++i) {
      for (const auto& [ending, member] : shard.members(i)) {
        shard.read(member, size, bytes);
        for (const std::byte b : bytes) sum += static_cast<std::uint8_t>(b);
      }
    }
    if (shard.samples() > static_cast<std::int64_t>(size / 512) || sum > size * 255 * 2) {
      std::abort();
    }
  } catch (const dtrain::train::Error&) {
    return 0;
  }
  return 0;
}
