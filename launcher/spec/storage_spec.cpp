#include "launcher/spec/storage_spec.hpp"

#include <string>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/spec/limits.hpp"

namespace dtrain {

using nlohmann::json;

namespace {

template <typename Number>
json or_null(const std::optional<Number>& number) {
  return number ? json(*number) : json();
}

std::optional<std::uint64_t> number_in(const json& object, const char* key, std::uint64_t least,
                                       std::uint64_t most) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  const bool negative =
      found->is_number_integer() && !found->is_number_unsigned() && found->get<std::int64_t>() < 0;
  if (!found->is_number_integer() || negative || found->get<std::uint64_t>() < least ||
      found->get<std::uint64_t>() > most) {
    throw Error(ErrorCode::invalid, std::string("\"") + key + "\" must be a whole number of " +
                                        std::to_string(least) + " to " + std::to_string(most));
  }
  return found->get<std::uint64_t>();
}

}  // namespace

json to_json(const StorageSpec& storage) {
  return json{
      {"retention",
       {{"days", or_null(storage.retention_days)}, {"size", or_null(storage.retention_size)}}},
      {"content_cache_size", or_null(storage.content_cache_size)}};
}

StorageSpec storage_spec_from_json(const json& value) {
  StorageSpec storage;
  if (!value.is_object()) throw Error(ErrorCode::invalid, "the storage settings are no object");
  if (const auto retention = value.find("retention");
      retention != value.end() && !retention->is_null()) {
    if (!retention->is_object()) throw Error(ErrorCode::invalid, "\"retention\" is no object");
    if (const auto days = number_in(*retention, "days", 1, limits::kRetentionDays)) {
      storage.retention_days = static_cast<int>(*days);
    }
    storage.retention_size = number_in(*retention, "size", 1, limits::kMemory);
  }
  storage.content_cache_size = number_in(value, "content_cache_size", 0, limits::kMemory);
  return storage;
}

}  // namespace dtrain
