#include "launcher/files/sync.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "launcher/core/text.hpp"
#include "launcher/files/beneath.hpp"
#include "launcher/files/operations.hpp"
#include "launcher/files/record.hpp"
#include "launcher/files/scan.hpp"
#include "launcher/files/sync_wire.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {

using namespace sync;

const char* to_string(SyncPhase phase) noexcept {
  switch (phase) {
    case SyncPhase::scanning:
      return "scanning";
    case SyncPhase::comparing:
      return "comparing";
    case SyncPhase::sending:
      return "sending";
    case SyncPhase::applying:
      return "applying";
  }
  return "";
}

std::vector<std::string> left_in_words(const MountOutcome& mount, std::size_t most) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < std::min(mount.left.size(), most); ++i) {
    words.push_back(mount.target + "/" + mount.left[i].path + " was left as it is: it " +
                    mount.left[i].reason);
  }
  if (mount.left_count > words.size()) {
    words.push_back(std::to_string(mount.left_count) + " files of " + mount.target +
                    " were left as they are");
  }
  return words;
}

bool SyncOutcome::complete() const noexcept {
  return std::all_of(mounts.begin(), mounts.end(), [](const MountOutcome& mount) {
    return mount.left_count == 0 && mount.changing.empty();
  });
}

fs::path resolve_target(const std::string& target, const fs::path& home) {
  if (target.empty() || target.find('\0') != std::string::npos) {
    throw Error(ErrorCode::invalid, "a path is empty, or has a NUL in it");
  }
  if (target.front() == '/') return target;
  if (target.front() != '~') return home / target;
  if (target == "~") return home;
  if (target[1] == '/')
    return home / target.substr(target.find_first_not_of('/', 1) == std::string::npos
                                    ? target.size()
                                    : target.find_first_not_of('/', 1));
  throw Error(ErrorCode::invalid,
              as_text(target) + ": another user's home is not looked up; write its path");
}

void request_receive(FramedStream& stream) {
  stream.send(FrameKind::text, R"({"role":"receive"})");
}

void request_send(FramedStream& stream, const std::vector<SyncMount>& mounts, bool dry_run) {
  json list = json::array();
  for (const SyncMount& mount : mounts) {
    refuse_unless_utf8(mount.source);
    for (const auto* texts : {&mount.exclude, &mount.filter_files}) {
      for (const std::string& text : *texts) refuse_unless_utf8(text);
    }
    list.push_back({{"source", mount.source.string()},
                    {"exclude", mount.exclude},
                    {"filter_files", mount.filter_files},
                    {"remove", mount.remove},
                    {"overwrite", mount.overwrite}});
  }
  const json request = {{"role", "send"}, {"mounts", std::move(list)}, {"dry_run", dry_run}};
  stream.send(FrameKind::text, request.dump(-1, ' ', false, json::error_handler_t::replace));
}

int serve_sync(FramedStream& stream, const ReceiveOptions& options) {
  const auto request = stream.read(options.silence);
  if (!request) return 0;
  json asked = json::parse(request->bytes, nullptr, false);
  if (request->kind != FrameKind::text || !asked.is_object()) return 2;
  try {
    if (wire::get_string(asked, "role") == "receive") {
      receive_trees(stream, options);
      return 0;
    }
    std::vector<SyncMount> mounts;
    SendOptions sending;
    sending.silence = options.silence;
    sending.dry_run = wire::get_bool(asked, "dry_run");
    sending.hash_cache = options.state / "hashes";
    for (const json& each : wire::get_list(asked, "mounts")) {
      SyncMount mount;
      mount.source = resolve_target(wire::get_string(each, "source"), options.home);
      mount.remove = wire::get_bool(each, "remove");
      mount.overwrite = wire::get_bool(each, "overwrite");
      mount.exclude = wire::get_strings(each, "exclude");
      mount.filter_files = wire::get_strings(each, "filter_files");
      mounts.push_back(std::move(mount));
    }
    send_trees(stream, mounts, sending);
    return 0;
  } catch (const Error&) {  // the other side knows it
    return 1;
  }
}

namespace {

// What a sync did to one target, or may have done: it was cut while it applied.
struct Synced {
  Record record;
  Journal journal;  // empty: it came to its end

  // As it was before and as it was to be; deeper ones first, and of one path both.
  std::vector<const Written*> entries() const {
    std::vector<const Written*> all;
    for (const Record* each : {&record, &journal.after}) {
      for (const Written& entry : each->entries) all.push_back(&entry);
    }
    std::sort(all.begin(), all.end(),
              [](const Written* a, const Written* b) { return a->path > b->path; });
    return all;
  }
};

Synced read_synced(const fs::path& state, const std::string& key) {
  Synced synced;
  if (const auto bytes = read_file_if_there(state / (key + ".record"), kRecordLimit)) {
    synced.record = decode_record(*bytes);
  }
  if (const auto bytes = read_file_if_there(state / (key + ".journal"), kRecordLimit)) {
    synced.journal = decode_journal(*bytes);
  }
  return synced;
}

// Makes folders open in which it has to remove something.
void open_folders(Beneath& files, const std::vector<const Written*>& entries) {
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if ((*entry)->kind != EntryKind::folder || ((*entry)->mode & 0700) == 0700) continue;
    const auto there = files.status((*entry)->path);
    if (!there || !S_ISDIR(there->st_mode)) continue;
    Operation open;
    open.kind = Operation::Kind::set_mode;
    open.path = (*entry)->path;
    open.mode = (*entry)->mode | 0700;
    perform(files, -1, "", open);
  }
}

void remove_entry(Beneath& files, const Written& entry) {
  Operation operation;
  operation.path = entry.path;
  operation.kind = entry.kind == EntryKind::folder ? Operation::Kind::remove_folder
                                                   : Operation::Kind::remove_file;
  operation.expect.what = entry.kind == EntryKind::link ? Expect::What::link : Expect::What::file;
  operation.expect.size = entry.size;
  operation.expect.mtime_ns = entry.kind == EntryKind::file ? entry.disk_mtime_ns : 0;
  operation.expect.target = entry.target;
  perform(files, -1, "", operation);
}

}  // namespace

std::vector<fs::path> remove_synced(const fs::path& state) {
  std::vector<fs::path> left;
  std::error_code failed;
  std::set<std::string> keys;
  for (const fs::directory_entry& file : fs::directory_iterator(state, failed)) {
    const fs::path kind = file.path().extension();
    if (kind == ".record" || kind == ".journal") keys.insert(file.path().stem().string());
  }
  for (const std::string& key : keys) {
    const Synced synced = read_synced(state, key);
    const bool was_cut = !synced.journal.after.target.empty();
    const Record& last = was_cut ? synced.journal.after : synced.record;
    fs::path base = last.target;
    if (last.single) base = base.parent_path();
    if (fs::is_directory(base, failed)) {
      Beneath files(base);
      const std::string stage = std::string(kStagingPrefix) + key;
      for (const Operation& operation : synced.journal.operations) {
        remove_temporary(files, stage + "-", operation);
      }
      const std::vector<const Written*> entries = synced.entries();
      open_folders(files, entries);
      for (std::size_t i = 0; i < entries.size(); ++i) {
        const std::string& path = entries[i]->path;
        remove_entry(files, *entries[i]);
        const bool again = i + 1 < entries.size() && entries[i + 1]->path == path;
        if (!again && files.status(path)) left.push_back(base / path);
      }
      if (files.status(stage)) remove_tree(base / stage);
    }
    for (auto made = last.made.rbegin(); made != last.made.rend(); ++made) {
      ::rmdir(made->c_str());  // as far as they are empty
    }
    for (const char* kind : {".record", ".journal", ".lock"})
      ::unlink((state / (key + kind)).c_str());
  }
  return left;
}

}  // namespace dtrain
