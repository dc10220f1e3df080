#include "agent/head/store/lineage.hpp"

#include <unistd.h>

#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/files.hpp"

namespace dtrain::head {
namespace {

// By another name, else as a copy.
void share_file(const fs::path& from, const fs::path& to) {
  if (::link(from.c_str(), to.c_str()) == 0) return;
  const bool no_links =
      errno == EXDEV || errno == EPERM || errno == EMLINK || errno == EOPNOTSUPP || errno == ENOSYS;
  if (!no_links) throw errno_error("cannot link " + printable_path(from), errno);
  std::error_code failed;
  fs::copy_file(from, to, failed);
  if (failed) throw errno_error("cannot copy " + printable_path(from), failed.value());
}

// `to` is there whole or not at all: `temporary` is renamed to it when everything is on disk.
void share_folder(const fs::path& from, const fs::path& temporary, const fs::path& to) {
  remove_tree(temporary);
  make_folders(temporary);
  const std::vector<FileEntry> files = list_files(from);
  for (const FileEntry& file : files) {
    make_folders((temporary / file.path).parent_path());
    share_file(from / file.path, temporary / file.path);
  }
  fsync_tree(temporary, files);
  failpoint("inherit.rename.before");
  if (::rename(temporary.c_str(), to.c_str()) != 0) {
    throw errno_error("cannot rename " + temporary.string() + " to " + to.string(), errno);
  }
  failpoint("inherit.rename.after");
  fsync_folder(to.parent_path());
}

fs::path temporary_start(const fs::path& storage) {
  return checkpoints_folder(storage) / ".tmp" / "start";
}

}  // namespace

StorageScan inherit_checkpoints(const fs::path& from, const fs::path& to) {
  StorageScan scan = scan_storage(from);
  make_folders(checkpoints_folder(to) / ".tmp");
  for (CommittedCheckpoint& checkpoint : scan.whole) {
    const fs::path place = checkpoint_folder(to, checkpoint.number);
    const fs::path temporary =
        checkpoints_folder(to) / ".tmp" / ("inherited-" + std::to_string(checkpoint.number));
    std::error_code none;
    if (!fs::exists(place, none)) share_folder(checkpoint.path, temporary, place);
    checkpoint.path = place;
  }
  return scan;
}

fs::path start_folder(const fs::path& storage) {
  return checkpoints_folder(storage) / "start";
}

void check_committed(const fs::path& folder) {
  while_doing("looking at the checkpoint " + printable_path(folder),
              [&] { verify_sizes(folder, read_manifest(folder).files); });
}

void share_start(const fs::path& checkpoint, const fs::path& storage) {
  check_committed(checkpoint);
  remove_tree(start_folder(storage));
  share_folder(checkpoint, temporary_start(storage), start_folder(storage));
}

void unpack_start(const ContentStore& store, const std::string& tree, const fs::path& storage) {
  const fs::path temporary = temporary_start(storage);
  make_folders(temporary.parent_path());
  remove_tree(temporary);
  make_copy(store, store.tree(tree), temporary);
  check_committed(temporary);
  fsync_tree(temporary, list_files(temporary));
  remove_tree(start_folder(storage));
  if (::rename(temporary.c_str(), start_folder(storage).c_str()) != 0) {
    throw errno_error("cannot make " + start_folder(storage).string(), errno);
  }
  fsync_folder(checkpoints_folder(storage));
}

}  // namespace dtrain::head
