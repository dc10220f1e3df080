#include "trainer/checkpoint/layout.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

using nlohmann::json;

constexpr std::size_t kLargestDocument = std::size_t{64} << 20;
constexpr int kVersion = 1;
constexpr const char* kPrefix = "checkpoint_";

std::string padded(std::int64_t number, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%0*lld", digits, static_cast<long long>(number));
  return text;
}

// Takes members out of a document and says which one is missing or wrong.
class Document {
 public:
  Document(const std::filesystem::path& path, const std::string& format) : path_(path) {
    json_ = json::parse(read_text(path, kLargestDocument), nullptr, /*allow_exceptions=*/false);
    if (!json_.is_object()) fail("not a JSON object");
    if (text("format") != format) fail("'format' is not '" + format + "'");
    if (number("version", 0) != kVersion) {
      fail("version " + std::to_string(number("version", 0)) + " is not known here");
    }
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(path_.string() + ": " + reason);
  }

  const json& member(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) fail(std::string("'") + key + "' is missing");
    return *found;
  }

  std::string text(const char* key) const {
    const json& value = member(key);
    if (!value.is_string()) fail(std::string("'") + key + "' is not a string");
    return value.get<std::string>();
  }

  std::int64_t number(const char* key, std::int64_t least,
                      std::int64_t most = std::numeric_limits<std::int64_t>::max()) const {
    const json& value = member(key);
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() &&
         value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) ||
        value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) {
      fail(std::string("'") + key + "' is not a whole number from " + std::to_string(least));
    }
    return value.get<std::int64_t>();
  }

  int small(const char* key, int least) const {
    return static_cast<int>(number(key, least, std::numeric_limits<int>::max()));
  }

  std::vector<FileRecord> files() const {
    const json& list = member("files");
    if (!list.is_array()) fail("'files' is not a list");
    std::vector<FileRecord> files;
    std::set<std::string> seen;
    for (const json& item : list) {
      const auto bad = [&](const char* key, bool good) {
        if (!good) fail("files[" + std::to_string(files.size()) + "]: bad '" + key + "'");
      };
      bad("path", item.is_object() && item.contains("path") && item["path"].is_string());
      bad("size", item.contains("size") && item["size"].is_number_unsigned());
      bad("sha256", item.contains("sha256") && item["sha256"].is_string());
      FileRecord record{item["path"].get<std::string>(), item["size"].get<std::uint64_t>(),
                        item["sha256"].get<std::string>()};
      bad("path", is_plain_path(record.path) && seen.insert(record.path).second);
      bad("sha256", record.sha256.size() == 64 &&
                        record.sha256.find_first_not_of("0123456789abcdef") == std::string::npos);
      files.push_back(std::move(record));
    }
    return files;
  }

 private:
  std::filesystem::path path_;
  json json_;
};

json to_json(const std::vector<FileRecord>& files) {
  json list = json::array();
  for (const FileRecord& file : files) {
    list.push_back({{"path", file.path}, {"size", file.size}, {"sha256", file.sha256}});
  }
  return list;
}

}  // namespace

std::filesystem::path checkpoints_folder(const std::filesystem::path& storage) {
  return storage / "checkpoints";
}

std::filesystem::path temporary_folder(const std::filesystem::path& storage, int attempt,
                                       std::int64_t step) {
  return checkpoints_folder(storage) / ".tmp" /
         ("attempt-" + std::to_string(attempt) + "-step-" + std::to_string(step));
}

std::string shard_name(int shard, int shards) {
  return "shard-" + padded(shard, 5) + "-of-" + padded(shards, 5);
}

std::string checkpoint_name(std::int64_t number) {
  return kPrefix + padded(number, 6);
}

std::optional<std::int64_t> checkpoint_number(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t number = 0;
  const char* begin = name.data() + std::string_view(kPrefix).size();
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || rest != end || number < 0) return std::nullopt;
  if (name != checkpoint_name(number)) return std::nullopt;  // too few or too many zeros
  return number;
}

bool is_plain_path(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos) return false;
  std::string::size_type begin = 0;
  for (;;) {
    const auto end = path.find('/', begin);
    const std::string part = path.substr(begin, end == std::string::npos ? end : end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    if (end == std::string::npos) return true;
    begin = end + 1;
  }
}

ShardRecord read_shard_record(const std::filesystem::path& shard_folder) {
  const Document document(shard_folder / "shard.json", "dtrain-shard");
  ShardRecord record;
  record.shards = document.small("shards", 1);
  record.shard = document.small("shard", 0);
  if (record.shard >= record.shards) document.fail("'shard' is not below 'shards'");
  record.step = document.number("step", 0);
  record.files = document.files();
  return record;
}

Manifest read_manifest(const std::filesystem::path& checkpoint_folder) {
  const Document document(checkpoint_folder / "manifest.json", "dtrain-checkpoint");
  Manifest manifest;
  manifest.number = document.number("number", 0);
  manifest.job = document.text("job");
  manifest.attempt = document.small("attempt", 1);
  manifest.step = document.number("step", 0);
  manifest.world_size = document.small("world_size", 1);
  manifest.shards = document.small("shards", 1);
  manifest.created = document.text("created");
  try {
    manifest.metrics = metrics_from_json(document.member("metrics"));
  } catch (const Error& error) {
    document.fail(error.what());
  }
  manifest.files = document.files();
  return manifest;
}

std::string to_json_text(const ShardRecord& record) {
  const json document = {{"format", "dtrain-shard"}, {"version", kVersion},
                         {"shard", record.shard},    {"shards", record.shards},
                         {"step", record.step},      {"files", to_json(record.files)}};
  return document.dump(1) + "\n";
}

std::string to_json_text(const Manifest& manifest) {
  const json document = {
      {"format", "dtrain-checkpoint"},     {"version", kVersion},
      {"number", manifest.number},         {"job", manifest.job},
      {"attempt", manifest.attempt},       {"step", manifest.step},
      {"world_size", manifest.world_size}, {"shards", manifest.shards},
      {"created", manifest.created},       {"metrics", metrics_to_json(manifest.metrics)},
      {"files", to_json(manifest.files)}};
  return document.dump(1) + "\n";
}

}  // namespace dtrain::train
