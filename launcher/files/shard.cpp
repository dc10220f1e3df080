#include "launcher/files/shard.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {

void check_checkpoint_format(const nlohmann::json& list, const std::string& format) {
  if (wire::get_string(list, "format") != format) {
    throw Error(ErrorCode::invalid, "\"format\" is not \"" + format + "\"");
  }
  const std::int64_t version = wire::get_int(list, "version", 1, INT32_MAX);
  if (version > kCheckpointFormat) {
    throw Error(ErrorCode::invalid, "it is of format version " + std::to_string(version) +
                                        ", and this dtrain knows " +
                                        std::to_string(kCheckpointFormat));
  }
}

bool holds(const fs::path& outer, const fs::path& inner) {
  const auto [rest, unused] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return rest == outer.end();
}

void require_own_folder(const fs::path& path) {
  struct stat status {};
  const std::string shown = printable_path(path);
  if (::lstat(path.c_str(), &status) != 0) throw errno_error("cannot look at " + shown, errno);
  if (!S_ISDIR(status.st_mode)) throw Error(ErrorCode::invalid, shown + " is not a folder");
  if (status.st_uid != ::geteuid()) {
    throw Error(ErrorCode::denied, shown + " belongs to another user");
  }
}

fs::path reported_folder(const fs::path& path) {
  if (!path.is_absolute()) {
    throw Error(ErrorCode::invalid, "the path of a checkpoint must be absolute");
  }
  fs::path plain = path.lexically_normal();
  if (!plain.has_filename()) plain = plain.parent_path();
  std::error_code failed;
  const fs::path parent = fs::canonical(plain.parent_path(), failed);
  if (failed) throw errno_error("cannot look at " + printable_path(plain), failed.value());
  plain = parent / plain.filename();
  require_own_folder(plain);
  return plain;
}

void refuse_around(const fs::path& folder, const std::vector<fs::path>& forbidden) {
  for (const fs::path& each : forbidden) {
    if (!each.empty() && holds(folder, fs::weakly_canonical(each))) {
      throw Error(ErrorCode::denied, printable_path(folder) + " cannot be taken as a checkpoint: " +
                                         each.string() + " lies in it");
    }
  }
}

std::vector<FileEntry> read_shard(const fs::path& folder, int shard, int shards,
                                  std::int64_t step) {
  return while_doing("reading " + (folder / "shard.json").string(), [&] {
    const nlohmann::json list = wire::parse_json(read_file(folder / "shard.json", kShardListLimit),
                                                 "shard.json", kShardListLimit);
    check_checkpoint_format(list, "dtrain-shard");
    if (wire::get_int(list, "shard", 0, INT32_MAX) != shard ||
        wire::get_int(list, "shards", 1, INT32_MAX) != shards ||
        wire::get_int(list, "step", 0, INT64_MAX) != step) {
      throw Error(ErrorCode::invalid, "it is of another shard or step than was reported");
    }
    return file_entries_from_json(wire::member(list, "files"));
  });
}

void write_shard(const fs::path& folder, int shard, int shards, std::int64_t step,
                 const std::vector<FileEntry>& files) {
  const nlohmann::json list = {{"format", "dtrain-shard"},
                               {"version", kCheckpointFormat},
                               {"shard", shard},
                               {"shards", shards},
                               {"step", step},
                               {"files", to_json(files)}};
  write_file_atomic(folder / "shard.json", wire::dump(list));
}

void verify_shard(const fs::path& folder, std::vector<FileEntry> files) {
  struct stat status {};
  if (::lstat((folder / "shard.json").c_str(), &status) != 0) {
    throw errno_error("cannot look at shard.json", errno);
  }
  files.push_back({"shard.json", static_cast<std::uint64_t>(status.st_size), {}});
  verify_sizes(folder, files, true);
}

}  // namespace dtrain
