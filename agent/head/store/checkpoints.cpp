#include "agent/head/store/checkpoints.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/beneath.hpp"
#include "launcher/files/shard.hpp"
#include "launcher/files/stored_checkpoints.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {
namespace {

// A of "attempt-A-step-S".
std::optional<int> attempt_of(const std::string& name) {
  int attempt = 0;
  int used = 0;
  if (std::sscanf(name.c_str(), "attempt-%d-step-%n", &attempt, &used) < 1 || used == 0) {
    return std::nullopt;
  }
  return attempt;
}

// A folder of this user's below the storage, and no link on the way there.
void require_real_folder(const fs::path& storage, const fs::path& path) {
  const auto status = Beneath(storage).status(path.lexically_relative(storage).string());
  if (!status) {
    throw Error(ErrorCode::not_found,
                printable_path(path) + " is not there, or a link leads to it");
  }
  require_own_folder(path);
}

void copy_tree(const fs::path& from, const fs::path& to, const std::vector<FileEntry>& entries) {
  make_folders(to);
  for (const FileEntry& entry : entries) {
    const fs::path target = to / entry.path;
    make_folders(target.parent_path());
    const UniqueFd in = open_file(from / entry.path, O_RDONLY | O_NOFOLLOW);
    const UniqueFd out = open_file(target, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    std::vector<char> buffer(std::size_t{1} << 20);
    while (true) {
      const ssize_t got = ::read(in.get(), buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw errno_error("cannot read " + printable(entry.path, false), errno);
      if (got == 0) break;
      write_all(out.get(), {buffer.data(), static_cast<std::size_t>(got)});
    }
  }
}

}  // namespace

fs::path checkpoints_folder(const fs::path& storage) {
  return storage / "checkpoints";
}

fs::path checkpoint_folder(const fs::path& storage, int number) {
  char name[32];
  std::snprintf(name, sizeof name, "checkpoint_%06d", number);
  return checkpoints_folder(storage) / name;
}

fs::path temporary_folder(const fs::path& storage, int attempt, std::int64_t step) {
  return checkpoints_folder(storage) / ".tmp" /
         ("attempt-" + std::to_string(attempt) + "-step-" + std::to_string(step));
}

std::string shard_name(int shard, int shards) {
  char name[48];
  std::snprintf(name, sizeof name, "shard-%05d-of-%05d", shard, shards);
  return name;
}

Manifest read_manifest(const fs::path& folder) {
  return while_doing("reading " + (folder / "manifest.json").string(), [&] {
    const nlohmann::json json = wire::parse_json(
        read_file(folder / "manifest.json", kShardListLimit), "it", kShardListLimit);
    check_checkpoint_format(json, "dtrain-checkpoint");
    Manifest manifest;
    manifest.checkpoint.number = static_cast<int>(wire::get_int(json, "number", 0, INT32_MAX));
    manifest.checkpoint.attempt = static_cast<int>(wire::get_int(json, "attempt", 0, INT32_MAX));
    manifest.checkpoint.step = wire::get_int(json, "step", 0, INT64_MAX);
    manifest.checkpoint.metrics = wire::member(json, "metrics");
    if (!manifest.checkpoint.metrics.is_object()) {
      throw Error(ErrorCode::invalid, "\"metrics\" is not an object");
    }
    manifest.checkpoint.created = parse_rfc3339(wire::get_string(json, "created"));
    manifest.files = file_entries_from_json(wire::member(json, "files"));
    manifest.checkpoint.size = total_size(manifest.files);
    return manifest;
  });
}

StorageScan scan_storage(const fs::path& storage, const std::set<int>& known) {
  StorageScan scan;
  std::vector<int> numbers;
  for (const fs::path& entry : entries_of(checkpoints_folder(storage))) {
    if (const auto number = checkpoint_number(entry.filename().string())) {
      numbers.push_back(*number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  for (const int number : numbers) {
    scan.highest = std::max(scan.highest, number);
    if (known.contains(number)) continue;
    const fs::path folder = checkpoint_folder(storage, number);
    try {
      Manifest manifest = read_manifest(folder);
      if (manifest.checkpoint.number != number) {
        throw Error(ErrorCode::invalid, "its manifest has another number");
      }
      verify_sizes(folder, manifest.files);
      manifest.checkpoint.path = folder;
      scan.whole.push_back(std::move(manifest.checkpoint));
    } catch (const Error& error) {
      scan.broken.push_back(folder.filename().string() +
                            " is not whole and is passed over: " + error.what());
    }
  }
  return scan;
}

void clear_temporary(const fs::path& storage, int attempt) {
  const fs::path temporary = checkpoints_folder(storage) / ".tmp";
  make_folders(temporary);
  for (const fs::directory_entry& entry : fs::directory_iterator(temporary)) {
    const std::string name = entry.path().filename().string();
    const auto of = attempt_of(name);
    if ((of && *of < attempt) || name.starts_with("deleted-") || name.starts_with("token-")) {
      remove_tree(entry.path());
    }
  }
}

void place_shard(const fs::path& storage, const ShardReport& report,
                 const std::vector<fs::path>& forbidden) {
  const fs::path place = shard_place(fs::weakly_canonical(storage), report);
  // An earlier try may have moved it, and then found no room for its list.
  const bool moved = !report.keep && !fs::exists(report.path) && fs::exists(place);
  const fs::path path = moved ? place : reported_folder(report.path);
  if (path != place) {
    refuse_around(path, forbidden);
    if (holds(checkpoints_folder(fs::weakly_canonical(storage)), path)) {
      throw Error(ErrorCode::denied,
                  printable_path(path) + " lies among committed checkpoints or other shards");
    }
    const std::vector<FileEntry> files = list_files(path);
    make_folders(place.parent_path());
    require_real_folder(fs::weakly_canonical(storage), place.parent_path());
    remove_tree(place);  // what an earlier try left
    failpoint("shard.rename.before");
    if (report.keep) {
      copy_tree(path, place, files);
    } else if (::rename(path.c_str(), place.c_str()) != 0) {
      if (errno != EXDEV) throw errno_error("cannot move " + printable_path(path), errno);
      copy_tree(path, place, files);
      fsync_tree(place, files);  // what is not on this disk yet may find no room there
      remove_tree(path);
    }
  }

  failpoint("shard.rename.after");
  const bool listed = fs::exists(place / "shard.json");
  take_placed(storage, report);
  if (listed && (moved || path != place)) fsync_tree(place, list_files(place));
}

void take_placed(const fs::path& storage, const ShardReport& report) {
  const fs::path place = shard_place(storage, report);
  require_real_folder(storage, place);
  if (fs::exists(place / "shard.json")) {
    verify_shard(place, read_shard(place, report.shard, report.shards, report.step));
    return;
  }
  std::vector<FileEntry> files = list_files(place);
  if (files.empty()) throw Error(ErrorCode::invalid, "the folder of the checkpoint is empty");
  compute_sums(place, files);
  fsync_tree(place, files);
  write_shard(place, report.shard, report.shards, report.step, files);
}

bool has_shard(const fs::path& storage, const ShardReport& report) {
  const fs::path place = shard_place(storage, report);
  if (!fs::exists(place / "shard.json")) return false;
  verify_shard(place, read_shard(place, report.shard, report.shards, report.step));
  return true;
}

fs::path shard_place(const fs::path& storage, const ShardReport& report) {
  return temporary_folder(storage, report.attempt, report.step) /
         shard_name(report.shard, report.shards);
}

fs::path incoming_folder(const fs::path& storage, const ShardReport& report) {
  return temporary_folder(storage, report.attempt, report.step).string() + "-incoming-" +
         std::to_string(report.shard);
}

void take_incoming(const fs::path& storage, const ShardReport& report,
                   const std::vector<FileEntry>& files) {
  if (files.empty()) throw Error(ErrorCode::invalid, "the folder of the checkpoint is empty");
  const fs::path incoming = incoming_folder(storage, report);
  verify_sizes(incoming, files, true);
  fsync_tree(incoming, files);
  write_shard(incoming, report.shard, report.shards, report.step, files);
  const fs::path place = shard_place(storage, report);
  make_folders(place.parent_path());
  require_real_folder(storage, place.parent_path());
  remove_tree(place);
  failpoint("shard.receive.before");
  if (::rename(incoming.c_str(), place.c_str()) != 0) {
    throw errno_error("cannot move a shard to " + place.string(), errno);
  }
  failpoint("shard.receive.after");
  fsync_folder(place.parent_path());
}

fs::path token_file(const fs::path& storage, const std::string& token) {
  return checkpoints_folder(storage) / ".tmp" / ("token-" + token.substr(0, 16));
}

CommittedCheckpoint commit_checkpoint(const fs::path& storage, const CommitRequest& request) {
  const fs::path folder = temporary_folder(storage, request.attempt, request.step);
  std::vector<FileEntry> files;
  for (int shard = 0; shard < request.shards; ++shard) {
    const std::string name = shard_name(shard, request.shards);
    require_real_folder(storage, folder / name);
    std::vector<FileEntry> part = read_shard(folder / name, shard, request.shards, request.step);
    verify_shard(folder / name, part);
    for (FileEntry& entry : part) {
      entry.path = name + "/" + entry.path;
      files.push_back(std::move(entry));
    }
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    int shard = 0;
    int used = 0;
    const bool ours = std::sscanf(name.c_str(), "shard-%d-%n", &shard, &used) == 1 && used > 0 &&
                      shard >= 0 && shard < request.shards &&
                      name == shard_name(shard, request.shards);
    // Our own manifest of a commit that was cut short is written anew.
    if (!ours && name != "manifest.json" && !name.starts_with(".manifest.json.tmp-")) {
      throw Error(ErrorCode::failed, printable(name, false) + " does not belong to the checkpoint");
    }
    if (name.starts_with(".manifest.json.tmp-")) remove_tree(entry.path());
  }

  int highest = request.least_number - 1;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoints_folder(storage))) {
    highest = std::max(highest, checkpoint_number(entry.path().filename().string()).value_or(-1));
  }
  const int number = highest + 1;
  const nlohmann::json manifest = {{"format", "dtrain-checkpoint"},
                                   {"version", kCheckpointFormat},
                                   {"number", number},
                                   {"job", request.job.str()},
                                   {"attempt", request.attempt},
                                   {"step", request.step},
                                   {"world_size", request.world_size},
                                   {"shards", request.shards},
                                   {"created", rfc3339(request.created)},
                                   {"metrics", request.metrics},
                                   {"files", to_json(files)}};
  write_file_atomic(folder / "manifest.json", wire::dump(manifest));
  const fs::path committed = checkpoint_folder(storage, number);
  failpoint("checkpoint.rename.before");
  if (::rename(folder.c_str(), committed.c_str()) != 0) {
    throw errno_error("cannot rename " + folder.string() + " to " + committed.string(), errno);
  }
  failpoint("checkpoint.rename.after");
  fsync_folder(checkpoints_folder(storage));
  failpoint("checkpoint.fsync.after");
  return {number,          committed,       request.attempt,  request.step,
          request.metrics, request.created, total_size(files)};
}

void remove_checkpoint(const fs::path& storage, int number) {
  const fs::path folder = checkpoint_folder(storage, number);
  const fs::path away = checkpoints_folder(storage) / ".tmp" /
                        ("deleted-" + std::to_string(number) + "-" + random_hex(4));
  make_folders(away.parent_path());
  failpoint("checkpoint.remove.before");
  if (::rename(folder.c_str(), away.c_str()) != 0) {
    if (errno == ENOENT) return;
    throw errno_error("cannot remove " + folder.string(), errno);
  }
  failpoint("checkpoint.remove.after");
  remove_tree(away);
}

}  // namespace dtrain::head
