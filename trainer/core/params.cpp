#include "trainer/core/params.hpp"

#include "trainer/core/error.hpp"

namespace dtrain::train {

nlohmann::json params(nlohmann::json defaults, const Lookup& lookup) {
  const auto text = lookup("DTRAIN_PARAMS");
  if (!text) return defaults;
  const nlohmann::json given = nlohmann::json::parse(*text, nullptr, false);
  if (!given.is_object()) throw Error("DTRAIN_PARAMS is no JSON object: " + *text);
  defaults.update(given, true);
  return defaults;
}

}  // namespace dtrain::train
