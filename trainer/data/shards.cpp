#include "trainer/data/shards.hpp"

#include <algorithm>
#include <charconv>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>

#include "trainer/core/files.hpp"
#include "trainer/data/codecs.hpp"

namespace dtrain::train {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr std::size_t kLargestIndex = std::size_t{64} << 20;
constexpr std::size_t kLargestLabel = 4096;
constexpr std::int64_t kMostClasses = 1 << 20;

std::int64_t label_of(std::span<const std::byte> bytes) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
    text.remove_suffix(1);
  }
  std::int64_t label = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
  if (error != std::errc{} || end != text.data() + text.size() || label < 0 ||
      label >= kMostClasses) {
    throw Error("its cls is not the number of a class");
  }
  return label;
}

std::string at_sample(const std::string& file, const std::string& key) {
  return file + ", sample '" + key + "': ";
}

class Shards : public ImageSource {
 public:
  Shards(const fs::path& folder, std::size_t most_open)
      : folder_(folder),
        index_(read_shard_index(folder)),
        most_open_(std::max<std::size_t>(most_open, 1)) {
    for (const ShardIndex::Shard& shard : index_.shards) {
      std::error_code error;
      const std::uintmax_t size = fs::file_size(folder / shard.file, error);
      if (error || size != shard.size) {
        throw Error((folder / shard.file).string() + ": " +
                    (error ? error.message()
                           : "has another size than " + std::string(kShardIndex) +
                                 " says; write the index anew"));
      }
      size_ += shard.samples;
      ends_.push_back(size_);
    }
    class_count_ = static_cast<std::int64_t>(index_.classes.size());
    headers_.resize(index_.shards.size());
  }

  std::string name() const override { return folder_.string(); }
  std::int64_t size() const override { return size_; }
  const std::vector<std::string>& classes() const override { return index_.classes; }
  std::int64_t class_count() const override { return class_count_; }

  ImageView image(std::int64_t index, std::vector<std::uint8_t>& scratch,
                  std::int64_t least) const override {
    const Place place = find(index);
    const auto shard = open(place.shard);
    const std::string& file = index_.shards[place.shard].file;
    try {
      const auto members = shard->members(place.sample);
      // By the whole ending: a mask or a depth (seg.png) is no image.
      const auto is_image = [](const auto& member) { return is_image_ending(member.first); };
      const auto image = std::find_if(members.begin(), members.end(), is_image);
      if (image == members.end()) throw Error("has no image");
      const auto other = std::find_if(std::next(image), members.end(), is_image);
      if (other != members.end()) {
        throw Error("has two images, " + image->first + " and " + other->first);
      }
      thread_local std::vector<std::byte> bytes;
      shard->read(image->second, kMostImageBytes, bytes);
      return decode_image(bytes, scratch, least);
    } catch (const Error& failed) {
      throw Error(at_sample(file, shard->key(place.sample)) + failed.what());
    }
  }

  std::int64_t label(std::int64_t index) const override {
    const Place place = find(index);
    const auto shard = open(place.shard);
    const std::string& file = index_.shards[place.shard].file;
    try {
      const auto members = shard->members(place.sample);
      const auto found = members.find("cls");
      if (found == members.end()) throw Error("has no cls");
      std::vector<std::byte> bytes;
      shard->read(found->second, kLargestLabel, bytes);
      const std::int64_t label = label_of(bytes);
      if (class_count_ > 0 && label >= class_count_) {
        throw Error("its class is " + std::to_string(label) + " of " +
                    std::to_string(class_count_));
      }
      return label;
    } catch (const Error& failed) {
      throw Error(at_sample(file, shard->key(place.sample)) + failed.what());
    }
  }

 private:
  struct Place {
    std::size_t shard;
    std::int64_t sample;
  };
  struct Open {
    std::size_t number;
    std::shared_ptr<const TarShard> shard;
  };

  Place find(std::int64_t index) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), index);
    const auto shard = static_cast<std::size_t>(end - ends_.begin());
    return {shard, index - (shard == 0 ? 0 : ends_[shard - 1])};
  }

  std::shared_ptr<const TarShard> open(std::size_t number) const {
    std::shared_ptr<const TarIndex> headers;
    {
      const std::lock_guard lock(mutex_);
      for (auto it = open_.begin(); it != open_.end(); ++it) {
        if (it->number != number) continue;
        open_.splice(open_.begin(), open_, it);  // the last one used comes first
        return it->shard;
      }
      headers = headers_[number];
    }
    // Outside of the lock: others go on with what is open. Two may do this at once for one shard.
    const fs::path path = folder_ / index_.shards[number].file;
    auto shard = headers ? std::make_shared<const TarShard>(path, headers)
                         : std::make_shared<const TarShard>(path);
    if (shard->samples() != index_.shards[number].samples) {
      throw Error(path.string() + ": has " + std::to_string(shard->samples()) + " samples, " +
                  kShardIndex + " says " + std::to_string(index_.shards[number].samples));
    }
    const std::lock_guard lock(mutex_);
    headers_[number] = shard->index();
    open_.push_front({number, shard});
    if (open_.size() > most_open_) open_.pop_back();
    return shard;
  }

  fs::path folder_;
  ShardIndex index_;
  std::size_t most_open_;
  std::vector<std::int64_t> ends_;  // samples up to and with each shard
  std::int64_t size_ = 0;
  std::int64_t class_count_ = 0;
  mutable std::mutex mutex_;
  mutable std::list<Open> open_;
  mutable std::vector<std::shared_ptr<const TarIndex>> headers_;  // by shard; null: not read yet
};

}  // namespace

ShardIndex read_shard_index(const fs::path& folder) {
  const fs::path path = folder / kShardIndex;
  const json document = json::parse(read_text(path, kLargestIndex), nullptr, false);
  try {
    if (!document.is_object() || document.at("format") != "dtrain-shards" ||
        document.at("version") != 1) {
      throw Error(path.string() + ": not an index of shards of version 1");
    }
    ShardIndex index;
    index.classes = document.at("classes").get<std::vector<std::string>>();
    for (const json& entry : document.at("shards")) {
      ShardIndex::Shard shard{entry.at("file").get<std::string>(),
                              entry.at("size").get<std::uint64_t>(),
                              entry.at("samples").get<std::int64_t>()};
      if (shard.file.empty() || shard.file.find('/') != std::string::npos || shard.file == ".." ||
          shard.samples < 0 || shard.samples > (std::int64_t{1} << 40)) {
        throw Error(path.string() + ": '" + shard.file + "' cannot be a shard");
      }
      index.shards.push_back(std::move(shard));
    }
    return index;
  } catch (const json::exception& error) {
    throw Error(path.string() + ": " + error.what());
  }
}

ShardIndex write_shard_index(const fs::path& folder, std::vector<std::string> classes) {
  ShardIndex index;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".tar" && entry.is_regular_file()) {
      names.push_back(entry.path().filename().string());
    }
  }
  if (names.empty()) throw Error(folder.string() + ": has no .tar file");
  std::sort(names.begin(), names.end());
  if (classes.empty() && fs::exists(folder / kShardIndex)) {
    classes = read_shard_index(folder).classes;
  }
  index.classes = std::move(classes);
  json shards = json::array();
  for (const std::string& name : names) {
    const TarShard shard(folder / name);
    index.shards.push_back({name, fs::file_size(folder / name), shard.samples()});
    shards.push_back(
        {{"file", name}, {"size", index.shards.back().size}, {"samples", shard.samples()}});
  }
  const json document = {
      {"format", "dtrain-shards"}, {"version", 1}, {"classes", index.classes}, {"shards", shards}};
  write_atomically(folder / kShardIndex,
                   document.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
  return index;
}

Images open_shards(const fs::path& folder, std::size_t open_shards) {
  return std::make_shared<Shards>(folder, open_shards);
}

}  // namespace dtrain::train
