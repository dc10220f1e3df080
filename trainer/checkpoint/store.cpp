#include "trainer/checkpoint/store.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <limits>
#include <mutex>
#include <set>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace fs = std::filesystem;
namespace {

std::string now_rfc3339() {
  const auto now = std::chrono::system_clock::now();
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  const std::time_t seconds = milliseconds / 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[64];
  const std::size_t size = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text + size, sizeof text - size, ".%03dZ", static_cast<int>(milliseconds % 1000));
  return text;
}

// Every file must be a regular one (no link) of its size.
void check_size(const fs::path& folder, const FileRecord& file) {
  const fs::path path = folder / file.path;
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) {
    throw DamagedCheckpoint(path.string() + ": is missing");
  }
  if (status.type() == fs::file_type::none) {
    throw errno_error("cannot stat " + path.string(), error.value());
  }
  if (status.type() != fs::file_type::regular) {
    throw DamagedCheckpoint(path.string() + ": not a regular file");
  }
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) throw errno_error("cannot stat " + path.string(), error.value());
  if (size != file.size) {
    throw DamagedCheckpoint(path.string() + ": has " + std::to_string(size) +
                            " bytes, its record says " + std::to_string(file.size));
  }
}

void check_no_other_file(const fs::path& shard, const ShardRecord& record) {
  std::set<std::string> known{"shard.json"};
  for (const FileRecord& file : record.files) known.insert(file.path);
  for (const auto& entry : fs::recursive_directory_iterator(shard)) {
    if (entry.symlink_status().type() == fs::file_type::directory) continue;
    const std::string path = entry.path().lexically_relative(shard).generic_string();
    if (!known.contains(path)) {
      throw Error(entry.path().string() + ": is not listed in shard.json");
    }
  }
}

std::int64_t next_number(const fs::path& folder) {
  std::int64_t next = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    if (name.ends_with(kBadSuffix)) name.resize(name.size() - std::string_view(kBadSuffix).size());
    if (const auto number = checkpoint_number(name)) {
      next = std::max(next, *number + 1);
    }
  }
  return next;
}

void make_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw errno_error("cannot make folder " + path.string(), error.value());
}

}  // namespace

ShardWriter::ShardWriter(const fs::path& storage, int attempt, std::int64_t step, int shard,
                         int shards)
    : folder_(fs::absolute(temporary_folder(storage, attempt, step)) / shard_name(shard, shards)),
      record_{shard, shards, step, {}} {
  std::error_code error;
  fs::remove_all(folder_, error);
  if (error) throw Error("cannot clear " + folder_.string() + ": " + error.message());
  make_folders(folder_);
}

ShardWriter::~ShardWriter() {
  std::error_code none;
  if (!finished_) fs::remove_all(folder_, none);
}

FileSink ShardWriter::create(const std::string& path) const {
  if (!is_plain_path(path) || path == "shard.json") {
    throw Error("checkpoint: '" + path + "' cannot be a file of a shard");
  }
  const fs::path full = folder_ / path;
  make_folders(full.parent_path());
  return FileSink(full);
}

void ShardWriter::close(FileSink& sink) {
  sink.finish();
  record_.files.push_back(
      {sink.path().lexically_relative(folder_).generic_string(), sink.size(), sink.sha256()});
}

void ShardWriter::finish() {
  for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
    if (entry.is_directory()) sync_folder(entry.path());
  }
  const FileDescriptor folder = open_file(folder_, O_RDONLY | O_DIRECTORY);
  sync_folder(folder, folder_);
  sync_folder(folder_.parent_path());
  write_atomically(folder_ / "shard.json", to_json_text(record_));
  finished_ = true;  // from here on who commits may see it, and move it
  sync_folder(folder, folder_);
}

void wait_for_shards(const fs::path& storage, int attempt, std::int64_t step, int shards,
                     const std::stop_token& stop,
                     const std::function<std::optional<std::string>()>& trouble,
                     std::chrono::milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLongestPause{100};
  const fs::path temporary = temporary_folder(storage, attempt, step);
  const auto deadline = Clock::now() + limit;
  std::chrono::milliseconds pause{2};
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  for (int shard = 0; shard < shards;) {
    const std::string name = shard_name(shard, shards);
    if (fs::exists(temporary / name / "shard.json")) {
      ++shard;
      continue;
    }
    if (const std::optional<std::string> why = trouble()) throw Error(*why);
    if (Clock::now() > deadline) {
      throw Error((temporary / name).string() + ": was not finished in time");
    }
    if (never.wait_for(lock, stop, pause, [] { return false; }) || stop.stop_requested()) {
      throw Error("the checkpoint of step " + std::to_string(step) + " was given up");
    }
    pause = std::min(pause * 2, kLongestPause);
  }
}

fs::path commit_checkpoint(const fs::path& storage, const CommitRequest& request) {
  const fs::path folder = checkpoints_folder(storage);
  const fs::path temporary = temporary_folder(storage, request.attempt, request.step);
  Manifest manifest;
  manifest.job = request.job;
  manifest.attempt = request.attempt;
  manifest.step = request.step;
  manifest.world_size = request.world_size;
  manifest.shards = request.shards;
  manifest.metrics = request.metrics;
  manifest.created = now_rfc3339();

  std::set<std::string> shards;
  for (int shard = 0; shard < request.shards; ++shard) {
    const std::string name = shard_name(shard, request.shards);
    shards.insert(name);
    const ShardRecord record = read_shard_record(temporary / name);
    if (record.shard != shard || record.shards != request.shards || record.step != request.step) {
      throw Error((temporary / name / "shard.json").string() + ": is of another shard or step");
    }
    for (const FileRecord& file : record.files) {
      check_size(temporary / name, file);
      manifest.files.push_back({name + "/" + file.path, file.size, file.sha256});
    }
    check_no_other_file(temporary / name, record);
  }
  for (const auto& entry : fs::directory_iterator(temporary)) {
    const std::string name = entry.path().filename().string();
    if (!shards.contains(name) && !name.starts_with("manifest.json")) {
      throw Error(entry.path().string() + ": is not a shard of this checkpoint");
    }
  }

  manifest.number = next_number(folder);
  write_atomically(temporary / "manifest.json", to_json_text(manifest));
  sync_folder(temporary);
  fs::path final_folder = folder / checkpoint_name(manifest.number);
  if (::rename(temporary.c_str(), final_folder.c_str()) != 0) {
    throw errno_error("cannot rename " + temporary.string() + " to " + final_folder.string(),
                      errno);
  }
  sync_folder(folder);
  return final_folder;
}

Checkpoint open_checkpoint(const fs::path& folder) {
  Checkpoint checkpoint{folder, read_manifest(folder)};
  for (const FileRecord& file : checkpoint.manifest.files) check_size(folder, file);
  return checkpoint;
}

void verify_checkpoint(const Checkpoint& checkpoint, int part, int parts) {
  const std::vector<FileRecord>& files = checkpoint.manifest.files;
  for (std::size_t i = static_cast<std::size_t>(part); i < files.size();
       i += static_cast<std::size_t>(parts)) {
    const fs::path path = checkpoint.folder / files[i].path;
    if (sha256_of_file(path) != files[i].sha256) {
      throw DamagedCheckpoint(path.string() +
                              ": its content does not match its SHA-256 in the manifest");
    }
  }
}

std::vector<Checkpoint> list_checkpoints(const fs::path& storage, const Warn& warn) {
  std::vector<Checkpoint> checkpoints;
  const fs::path folder = checkpoints_folder(storage);
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory) return checkpoints;
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::directory_entry& entry = *entries;
    const auto number = checkpoint_number(entry.path().filename().string());
    if (!number) continue;
    try {
      checkpoints.push_back(open_checkpoint(entry.path()));
      if (checkpoints.back().manifest.number != *number) {
        checkpoints.pop_back();
        throw Error(entry.path().string() + ": its manifest has another number");
      }
    } catch (const Error& problem) {
      const int why = problem.error_number();
      if (why != 0 && why != ENOENT && why != ENOTDIR) throw;
      warn(std::string("passed over a checkpoint that is not whole: ") + problem.what());
    }
  }
  if (error) throw errno_error("cannot read " + folder.string(), error.value());
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const auto& a, const auto& b) { return a.manifest.number < b.manifest.number; });
  return checkpoints;
}

std::optional<Checkpoint> newest_checkpoint(const fs::path& storage, const Warn& warn) {
  std::vector<Checkpoint> checkpoints = list_checkpoints(storage, warn);
  if (checkpoints.empty()) return std::nullopt;
  return std::move(checkpoints.back());
}

std::vector<Checkpoint> best_first(std::vector<Checkpoint> checkpoints,
                                   const Retention& retention) {
  const auto score = [&](const Checkpoint& checkpoint) {
    const auto found = checkpoint.manifest.metrics.find(retention.score_attribute);
    const double worst = -std::numeric_limits<double>::infinity();
    if (found == checkpoint.manifest.metrics.end() || std::isnan(found->second)) return worst;
    return retention.higher_is_better ? found->second : -found->second;
  };
  std::sort(checkpoints.begin(), checkpoints.end(), [&](const Checkpoint& a, const Checkpoint& b) {
    if (!retention.score_attribute.empty() && score(a) != score(b)) return score(a) > score(b);
    return a.manifest.number > b.manifest.number;  // of equals, the newer
  });
  return checkpoints;
}

std::vector<std::int64_t> checkpoints_to_remove(const std::vector<Checkpoint>& checkpoints,
                                                const Retention& retention,
                                                std::optional<std::int64_t> in_use) {
  if (!retention.num_to_keep || checkpoints.empty()) return {};
  const std::vector<Checkpoint> best = best_first(checkpoints, retention);
  std::int64_t newest = 0;
  for (const Checkpoint& each : checkpoints) newest = std::max(newest, each.manifest.number);
  std::vector<std::int64_t> gone;
  for (std::size_t i = static_cast<std::size_t>(std::max(*retention.num_to_keep, 1));
       i < best.size(); ++i) {
    const std::int64_t number = best[i].manifest.number;
    if (number != newest && number != in_use) gone.push_back(number);
  }
  std::sort(gone.begin(), gone.end());
  return gone;
}

void remove_checkpoints(const fs::path& storage, const Retention& retention,
                        std::optional<std::int64_t> in_use, const Warn& warn) {
  std::vector<std::int64_t> numbers;
  try {
    numbers = checkpoints_to_remove(list_checkpoints(storage, warn), retention, in_use);
  } catch (const Error& problem) {
    warn(std::string("no checkpoint is removed: ") + problem.what());
  }
  for (const std::int64_t number : numbers) {
    const fs::path folder = checkpoints_folder(storage) / checkpoint_name(number);
    std::error_code error;
    // The manifest goes first: half removed must not look whole.
    fs::remove(folder / "manifest.json", error);
    if (!error) fs::remove_all(folder, error);
    if (error) warn("cannot remove " + folder.string() + ": " + error.message());
  }
}

void remove_temporaries(const fs::path& storage) {
  const fs::path folder = checkpoints_folder(storage) / ".tmp";
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) throw Error("cannot remove " + folder.string() + ": " + error.message());
}

}  // namespace dtrain::train
