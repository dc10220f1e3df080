#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launcher/core/files.hpp"
#include "launcher/files/manifest.hpp"

// The folder of a checkpoint's shard as a rank reports it, and its list of files, shard.json:
// looked at the same way where the head sees the folder and where only its node does. See
// docs/checkpoint_format.md. All throw Error.
namespace dtrain {

inline constexpr int kCheckpointFormat = 1;  // the version that is written
inline constexpr std::size_t kShardListLimit = std::size_t{64} << 20;  // bytes of a list

// Of the list of a checkpoint, or of a shard: `format` in a version that this dtrain knows.
void check_checkpoint_format(const nlohmann::json& list, const std::string& format);

// True when `inner` is `outer` or lies below it.
bool holds(const fs::path& outer, const fs::path& inner);

// A folder, no link, of this user's.
void require_own_folder(const fs::path& path);

// The path that a rank reported, with all links resolved but one as the folder itself, which is
// refused; so is what is no folder of this user, and what holds one of `forbidden`.
fs::path reported_folder(const fs::path& path);
void refuse_around(const fs::path& folder, const std::vector<fs::path>& forbidden);

// The files of a shard by its shard.json, which must be of this shard and step.
std::vector<FileEntry> read_shard(const fs::path& folder, int shard, int shards, std::int64_t step);
void write_shard(const fs::path& folder, int shard, int shards, std::int64_t step,
                 const std::vector<FileEntry>& files);
// They are all there, of their sizes, and nothing else but shard.json.
void verify_shard(const fs::path& folder, std::vector<FileEntry> files);

}  // namespace dtrain
