// The header of a safetensors file from a stranger is read, or refused.

#include <cstdint>
#include <string_view>

#include "trainer/checkpoint/safetensors_header.hpp"
#include "trainer/core/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    dtrain::train::parse_safetensors_header(
        std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const dtrain::train::Error&) {
    return 0;
  }
  return 0;
}
