#include "trainer/train/objects.hpp"

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

// CBOR: floating point numbers come back bit by bit, and NaN too.
std::string packed(const nlohmann::json& value) {
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(value);
  return {bytes.begin(), bytes.end()};
}

nlohmann::json unpacked(const std::string& bytes) {
  try {
    return nlohmann::json::from_cbor(bytes);
  } catch (const nlohmann::json::exception& error) {
    throw Error(std::string("an object from another rank cannot be read: ") + error.what());
  }
}

}  // namespace

nlohmann::json broadcast_object(Context& context, const nlohmann::json& value, int from) {
  if (context.world_size() == 1) return value;
  return unpacked(context.broadcast(context.rank() == from ? packed(value) : std::string(), from));
}

std::vector<nlohmann::json> all_gather_objects(Context& context, const nlohmann::json& value) {
  if (context.world_size() == 1) return {value};
  std::vector<nlohmann::json> values;
  for (const std::string& bytes : context.all_gather(packed(value))) {
    values.push_back(unpacked(bytes));
  }
  return values;
}

}  // namespace dtrain::train
