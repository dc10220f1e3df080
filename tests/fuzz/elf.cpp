// Whatever a file holds, reading it as ELF or as the loader's cache ends, with an answer or an
// Error.

#include <cstdint>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/files/bundle.hpp"
#include "launcher/files/elf.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    if (const auto file = dtrain::read_elf(bytes)) (void)dtrain::needed_glibc(*file);
  } catch (const dtrain::Error&) {
    // Damaged.
  }
  (void)dtrain::parse_loader_cache(bytes);
  dtrain::LibraryNames names;
  names.add(bytes.substr(0, size / 2));
  names.add(bytes.substr(size / 2));
  (void)names.names();
  return 0;
}
