// Whatever is read as a message of a session is written as one that reads the same.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/session.hpp"

namespace {

namespace wire = dtrain::wire;

template <typename Again>
void try_as(const nlohmann::json& json, Again again) {
  nlohmann::json once;
  try {
    once = again(json);
  } catch (const dtrain::Error&) {
    return;
  }
  if (again(once) != once) std::abort();
}

template <typename Answer>
nlohmann::json answer(const nlohmann::json& json) {
  return wire::session_to_json(wire::session_from_json<Answer>(json));
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
  try_as(json, [](const auto& j) { return wire::to_json(wire::session_request_from_json(j)); });
  try_as(json, answer<wire::SessionHello>);
  try_as(json, answer<wire::NodeFound>);
  try_as(json, answer<wire::SetupOutput>);
  try_as(json, answer<wire::SurveyReport>);
  try_as(json, answer<wire::AgentsStarted>);
  return 0;
}
