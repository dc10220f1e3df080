#include "launcher/core/trash.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/mounts.hpp"

namespace dtrain {
namespace {

constexpr int kNice = 10;  // of the thread: ranks and heartbeats go first

}  // namespace

Trash::Trash(fs::path folder) : folder_(std::move(folder)) {
  worker_.add([this] {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
    std::error_code missing;
    for (const auto& left : fs::directory_iterator(folder_, missing)) unlink_all(left.path());
  });
}

Trash::~Trash() {
  ending_ = true;
}

void Trash::take(const fs::path& path) {
  refuse_mounts(path);
  make_folders(folder_);
  const fs::path away = folder_ / (path.filename().string() + "." + random_hex(8));
  failpoint("trash.rename.before");
  if (std::rename(path.c_str(), away.c_str()) != 0) {
    if (errno == ENOENT) return;
    throw errno_error("cannot move " + path.string() + " to " + folder_.string(), errno);
  }
  failpoint("trash.rename.after");
  worker_.add([this, away] { unlink_all(away); });
}

void Trash::unlink_all(const fs::path& tree) {
  std::error_code failed;
  std::error_code kept;
  if (fs::is_symlink(fs::symlink_status(tree, kept))) {  // what it leads to is somebody else's
    fs::remove(tree, kept);
    return;
  }
  try {
    refuse_mounts(tree);
    for (fs::recursive_directory_iterator at(tree, failed), end; !failed && at != end;
         at.increment(failed)) {
      if (ending_) return;
      if (at->symlink_status(kept).type() != fs::file_type::directory) fs::remove(at->path(), kept);
    }
    if (ending_) return;
    remove_tree(tree);  // the folders, and what could not be entered
  } catch (const Error& error) {
    log::warn("deleted files stay", {{"why", error.what()}});
  }
}

}  // namespace dtrain
