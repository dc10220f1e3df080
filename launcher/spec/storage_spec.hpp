#pragma once

#include <cstdint>
#include <optional>

#include <nlohmann/json_fwd.hpp>

namespace dtrain {

// What a cluster may delete by itself, and what it may keep for later: `retention` and
// `content_cache_size` of the cluster YAML. `up` tells the head, which keeps it in head.json.
struct StorageSpec {
  // Jobs that have ended are forgotten, with logs and checkpoints: those that ended so many days
  // ago, and the oldest while all of them together fill more than `retention_size` bytes of the
  // head's disk. Absent: they stay until somebody removes them.
  std::optional<int> retention_days;
  std::optional<std::uint64_t> retention_size;
  // Bytes, on head and nodes each, of files of jobs that no job needs now. Absent: a part of the
  // disk, see kContentCacheDiskPercent.
  std::optional<std::uint64_t> content_cache_size;

  bool operator==(const StorageSpec&) const = default;
};

nlohmann::json to_json(const StorageSpec& storage);
// Throws Error(invalid).
StorageSpec storage_spec_from_json(const nlohmann::json& json);

// Of the file system, where `content_cache_size` is not given.
inline constexpr int kContentCacheDiskPercent = 10;

}  // namespace dtrain
