#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "launcher/spec/yaml.hpp"

namespace dtrain::fuzz {

inline std::optional<std::string> environment(const std::string& name) {
  if (name == "HOME") return "/home/me";
  if (name == "V") return "value";
  if (name == "N") return "3";
  return std::nullopt;
}

// Any bytes are either a good specification or a SpecError with at least one problem: no other
// exception, no crash, and what was accepted is valid and can be written. `look` is given it and
// its text.
template <typename Parse, typename Look>
int read_specification(const std::uint8_t* data, std::size_t size, Parse parse, Look look) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto read = parse(text, "/work/fuzz.yaml", environment);
    if (!validate(read.spec).empty()) std::abort();
    const std::string written = to_json(read.spec).dump();  // throws if a text is not UTF-8
    look(read.spec, written);
  } catch (const SpecError& error) {
    if (error.problems().empty()) std::abort();
  }
  return 0;
}

}  // namespace dtrain::fuzz
