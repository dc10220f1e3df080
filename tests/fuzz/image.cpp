// Any bytes are either an image, decoded in bounded memory, or a refusal. Sizes are kept small, so
// that a run sees many inputs: what is larger is left to the limit in decode_image.

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "trainer/data/codecs.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static std::vector<std::uint8_t> pixels;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  for (const std::int64_t least : {0, 8}) {
    try {
      const dtrain::train::ImageView view = dtrain::train::decode_image(bytes, pixels, least);
      if (view.rows < 1 || view.columns < 1 || view.channels != 3 ||
          pixels.size() < static_cast<std::size_t>(view.rows * view.columns * 3)) {
        std::abort();
      }
    } catch (const dtrain::train::Error&) {
      continue;
    }
  }
  return 0;
}
