#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/image_source.hpp"

// WebDataset's form: tar files ("shards"), in which the members of one sample follow each other
// and have one name up to the first dot of its last part: a/0001.jpg, a/0001.cls.
namespace dtrain::train {

// Where the members of a shard lie, by what its headers say: some tens of bytes for each.
class TarIndex;

// One shard, its headers read, its file open for its data. Throws Error, with the file and what is
// wrong: not a plain tar (a compressed one has no random access), a member that goes beyond the
// file, too many members, a name without an ending, or twice in a sample. Links, folders and the
// like are passed over.
class TarShard {
 public:
  explicit TarShard(const std::filesystem::path& path);
  // With the index that an earlier one has made of the same file: no header is read. Throws Error
  // if the file has another size by now.
  TarShard(const std::filesystem::path& path, std::shared_ptr<const TarIndex> index);
  ~TarShard();
  TarShard(const TarShard&) = delete;
  TarShard& operator=(const TarShard&) = delete;

  std::int64_t samples() const;
  std::string key(std::int64_t sample) const;
  struct Member {
    std::uint64_t begin = 0;
    std::uint64_t size = 0;
  };
  // A sample's members by their ending ("jpg", "cls", "seg.png").
  std::map<std::string, Member> members(std::int64_t sample) const;
  // One of them into `bytes`, whose memory may serve for several. Throws Error where it has more
  // than `limit`, and where it cannot be read: the file is shorter by now, or its medium fails.
  void read(const Member& member, std::size_t limit, std::vector<std::byte>& bytes) const;
  const std::shared_ptr<const TarIndex>& index() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What shards.json in their folder says: {"format":"dtrain-shards","version":1,"classes":[…],
// "shards":[{"file":"000000.tar","size":BYTES,"samples":N}]}. With it, finding a sample costs one
// look into a table, and then the headers of the one shard that it is in.
struct ShardIndex {
  struct Shard {
    std::string file;
    std::uint64_t size = 0;
    std::int64_t samples = 0;
  };
  std::vector<std::string> classes;  // names by label; may be empty
  std::vector<Shard> shards;
};

constexpr const char* kShardIndex = "shards.json";

// Reads and checks shards.json. Throws Error.
ShardIndex read_shard_index(const std::filesystem::path& folder);
// Reads the headers of all *.tar in the folder, by their names' order, and writes shards.json.
// Names of classes that an older one has are kept unless others are given.
ShardIndex write_shard_index(const std::filesystem::path& folder,
                             std::vector<std::string> classes = {});

// The images (the one member of a sample whose whole ending is jpg, jpeg or png, in any case) and
// labels (cls: a number as text) of a folder of shards with its index. At most `open_shards` shards
// are held open, a descriptor each; what the headers of a shard say is read once and kept. Throws
// Error when there is no index, or it is not of these files (their sizes differ).
Images open_shards(const std::filesystem::path& folder, std::size_t open_shards = 64);

}  // namespace dtrain::train
