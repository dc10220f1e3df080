// Whatever comes as a stream of blobs, only what was asked for, with the right sum, is in the store
// afterwards. The first byte says whether the rest is packed.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/files/blob_stream.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const dtrain::fs::path folder =
      dtrain::fs::temp_directory_path() / ("dtrain-fuzz-" + std::to_string(::getpid()));
  if (size == 0) return 0;
  dtrain::remove_tree(folder);
  const dtrain::ContentStore store(folder);
  dtrain::Sha256 sum;
  sum.add("abc");
  const std::string name = sum.hex();
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    dtrain::BlobReceiver receiver(store, {{name, 3}}, (data[0] & 1) != 0);
    receiver.take(bytes.substr(0, bytes.size() / 2));
    receiver.take(bytes.substr(bytes.size() / 2));
    receiver.finish();
  } catch (const dtrain::Error&) {
    // Refused.
  }
  std::error_code none;
  for (const auto& file : dtrain::fs::recursive_directory_iterator(folder / "blobs", none)) {
    if (file.is_regular_file() && (file.path().filename() != name || store.read(name) != "abc")) {
      std::abort();
    }
  }
  dtrain::remove_tree(folder);
  return 0;
}
