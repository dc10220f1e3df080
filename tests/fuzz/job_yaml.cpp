#include "tests/fuzz/specification.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return dtrain::fuzz::read_specification(
      data, size, [](auto... arguments) { return dtrain::parse_job_yaml(arguments...); },
      [](const dtrain::JobSpec& spec, const std::string& written) {
        const nlohmann::json again = nlohmann::json::parse(written);
        if (!(dtrain::job_spec_from_json(again) == spec)) std::abort();
      });
}
