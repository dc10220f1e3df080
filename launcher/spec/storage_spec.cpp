#include "launcher/spec/storage_spec.hpp"

#include "launcher/spec/limits.hpp"
#include "launcher/wire/fields.hpp"

namespace dtrain {

using nlohmann::json;
using wire::or_default;

namespace {

constexpr auto kMostBytes = static_cast<std::int64_t>(limits::kMemory);

}  // namespace

void fields(wire::Is<StorageSpec> auto& m, auto&& f) {
  f("content_cache_size", or_default(m.content_cache_size, {0, kMostBytes}));
}

// Its part "retention".
void retention_fields(auto& m, auto&& f) {
  f("days", or_default(m.retention_days, {1, limits::kRetentionDays}), "size",
    or_default(m.retention_size, {1, kMostBytes}));
}

json to_json(const StorageSpec& storage) {
  json out = wire::written(storage);
  retention_fields(storage, wire::FieldWriter{out["retention"]});
  return out;
}

StorageSpec storage_spec_from_json(const json& value) {
  StorageSpec storage;
  wire::read(value, storage);
  if (const auto found = value.find("retention"); found != value.end() && !found->is_null()) {
    retention_fields(storage, wire::FieldReader{*found});
  }
  return storage;
}

}  // namespace dtrain
