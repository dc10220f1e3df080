// Whatever is read as a message of an attempt is written as one that reads the same.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/wire/attempt.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/node.hpp"

namespace {

namespace wire = dtrain::wire;

template <typename Read>
void try_as(const nlohmann::json& json, Read read) {
  nlohmann::json once;
  try {
    once = wire::to_json(read(json));
  } catch (const dtrain::Error&) {
    return;
  }
  if (wire::to_json(read(once)) != once) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nlohmann::json json;
  try {
    json = wire::parse_json({reinterpret_cast<const char*>(data), size}, "the message",
                            std::size_t{1} << 20);
  } catch (const dtrain::Error&) {
    return 0;
  }
  try_as(json, wire::attempt_event_from_json);
  try_as(json, wire::attempt_command_from_json);
  try_as(json, wire::attempt_spec_from_json);
  try_as(json, wire::node_message_from_json);
  try_as(json, wire::head_message_from_json);
  try_as(json, wire::bulk_message_from_json);
  return 0;
}
