#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "launcher/spec/yaml.hpp"

// Any bytes are either a good specification or a SpecError with at least one problem: no other
// exception, no crash, and what was accepted is valid and can be written.
namespace {

std::optional<std::string> environment(const std::string& name) {
  if (name == "HOME") return "/home/me";
  if (name == "V") return "value";
  if (name == "N") return "3";
  return std::nullopt;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto read = dtrain::parse_cluster_yaml(text, "/work/fuzz.yaml", environment);
    if (!dtrain::validate(read.spec).empty()) std::abort();
    const nlohmann::json json = dtrain::to_json(read.spec);
    const std::string written = json.dump();  // throws if a text is not UTF-8
    if (written.empty()) std::abort();
  } catch (const dtrain::SpecError& error) {
    if (error.problems().empty()) std::abort();
  }
  return 0;
}
