#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/files.hpp"
#include "trainer/core/metrics.hpp"

// The folders and documents of docs/checkpoint_format.md, version 1.
namespace dtrain::train {

struct FileRecord {
  std::string path;  // relative, components joined by '/'
  std::uint64_t size = 0;
  std::string sha256;
};

struct ShardRecord {
  int shard = 0;
  int shards = 1;
  std::int64_t step = 0;
  std::vector<FileRecord> files;
};

struct Manifest {
  std::int64_t number = 0;
  std::string job;
  int attempt = 1;
  std::int64_t step = 0;
  int world_size = 1;
  int shards = 1;
  std::string created;  // RFC 3339, UTC, milliseconds
  Metrics metrics;
  std::vector<FileRecord> files;
};

// Where things lie below a job's storage path.
std::filesystem::path checkpoints_folder(const std::filesystem::path& storage);
std::filesystem::path temporary_folder(const std::filesystem::path& storage, int attempt,
                                       std::int64_t step);
std::string shard_name(int shard, int shards);     // shard-00000-of-00001
std::string checkpoint_name(std::int64_t number);  // checkpoint_000000
std::optional<std::int64_t> checkpoint_number(const std::string& name);

// Plain components joined by '/': not absolute, no '.', '..' or empty component, no NUL.
bool is_plain_path(const std::string& path);

// Each throws Error that names the file and what is wrong with it.
ShardRecord read_shard_record(const std::filesystem::path& shard_folder);
Manifest read_manifest(const std::filesystem::path& checkpoint_folder);
std::string to_json_text(const ShardRecord& record);
std::string to_json_text(const Manifest& manifest);

}  // namespace dtrain::train
