#include "tests/fuzz/specification.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return dtrain::fuzz::read_specification(
      data, size, [](auto... arguments) { return dtrain::parse_cluster_yaml(arguments...); },
      [](const dtrain::ClusterSpec&, const std::string& written) {
        if (written.empty()) std::abort();
      });
}
