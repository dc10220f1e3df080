#include <algorithm>
#include <utility>

#include "launcher/cluster/counted.hpp"
#include "launcher/cluster/node_setup.hpp"
#include "launcher/cluster/node_work.hpp"
#include "launcher/cluster/session_sync.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"

// The user's files, and the user's setup commands.
namespace dtrain {
namespace {

constexpr std::size_t kLongestLine = 4096;  // of a setup command's output, as it is shown

}  // namespace

void NodeWork::files() {
  if (spec_.file_mounts.empty()) return;
  begin("files");
  send(mounts_of(spec_, options_.force));
}

void NodeWork::send(const std::vector<SyncMount>& mounts) {
  SendOptions how;
  how.dry_run = options_.dry_run;
  how.hash_cache = paths::file_sums();
  how.watch = [&](const SyncProgress& progress) {
    if (progress.phase != SyncPhase::sending)
      return tell(State::at_work, to_string(progress.phase));
    tell(State::at_work, human_bytes(progress.bytes) + " of " + human_bytes(progress.bytes_total));
  };
  if (task_.parcels) {
    how.parcel = [&](const SyncArchive& archive) {
      Parcels::Host host;
      host.name = task_.machine.node.str();
      host.transport = transport_.get();
      host.folder = node_.root;
      host.free = session_->hello().host.home_free;
      host.watch = [&](std::uint64_t done, std::uint64_t total) {
        tell(State::at_work, human_bytes(done) + " of " + human_bytes(total));
      };
      return task_.parcels->bring(archive, host, held_);
    };
  }
  const SyncOutcome outcome = sync_to(*session_, mounts, how);
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;
  std::uint64_t touched = 0;
  std::uint64_t removed = 0;
  for (const MountOutcome& mount : outcome.mounts) {
    files += mount.files;
    bytes += mount.bytes;
    touched += mount.touched;
    removed += mount.removed;
    for (const std::string& words : left_in_words(mount)) warn(words);
    for (const std::string& path : mount.changing) {
      warn(path + " changed while it was read, and was left out");
    }
  }
  if (files + touched + removed == 0) return;
  std::string text = counted(files, "file") + ", " + human_bytes(bytes);
  if (removed > 0) text += ", " + std::to_string(removed) + " removed";
  did(text);
}

void NodeWork::synced_files() {
  if (spec_.cluster_synced_files.empty() || task_.head) return;
  begin("synced files", "waiting for the head's");
  if (options_.dry_run) return did("as the head has them");
  const fs::path folder = desk_.files(options_.access.stop);
  std::vector<SyncMount> mounts;
  for (std::size_t i = 0; i < spec_.cluster_synced_files.size(); ++i) {
    SyncMount one;
    one.target = spec_.cluster_synced_files[i];
    one.source = folder / std::to_string(i);
    mounts.push_back(std::move(one));
  }
  send(mounts);
}

void NodeWork::give_synced_files() {
  if (spec_.cluster_synced_files.empty() || !task_.head || options_.dry_run) return;
  begin("synced files");
  desk_.open_files(fetch_from(*session_, spec_.cluster_synced_files,
                              paths::cluster_state(spec_.cluster_name) / "synced"));
}

std::vector<wire::SetupList> NodeWork::lists() const {
  if (options_.no_setup) return {};
  return setup_lists(spec_, task_.head);
}

void NodeWork::setup() {
  for (const wire::SetupList& list : lists()) run_list(list);
  give_synced_files();
}

void NodeWork::run_list(const wire::SetupList& list) {
  begin("setup");
  const auto plan =
      std::find_if(node_.lists.begin(), node_.lists.end(),
                   [&](const wire::SetupPlan& each) { return each.list == list.list; });
  const std::size_t first = options_.force || plan == node_.lists.end()
                                ? 0
                                : static_cast<std::size_t>(std::max(plan->first, 0));
  if (first >= list.commands.size() && !(plan != node_.lists.end() && plan->running)) return;
  const std::string which = list.list + ": " +
                            (first == 0 ? counted(list.commands.size(), "command")
                                        : "from command " + std::to_string(first + 1) + " of " +
                                              std::to_string(list.commands.size()) + " on");
  if (options_.dry_run) return did(which);
  wire::StartSetup start;
  start.list = list.list;
  start.commands = list.commands;
  start.env = {{"RAY_HEAD_IP", head_ip()}, {"DTRAIN_NODE", task_.machine.node.str()}};
  start.from_start = options_.force;
  tell(State::at_work, which);
  SetupProgress& progress = progress_[list.list];
  const wire::SetupStatus status =
      session_->run_setup(start, progress, [&](std::string_view output) {
        show_output(output);
        return !stopped();
      });
  show_output("\n");  // a last line without its end
  if (stopped() && status.state == wire::SetupState::running) {
    session_->cancel_setup(list.list);
    throw Error(ErrorCode::failed, "stopped in " + list.list);
  }
  if (status.state != wire::SetupState::succeeded) {
    report_.tail = status.tail;
    throw wire::setup_error(status).with_hint(
        "mend it and run dtrain up again, which goes on there; all "
        "it printed: dtrain logs --setup " +
        task_.machine.node.str());
  }
  did(which);
}

void NodeWork::show_output(std::string_view output) {
  std::string last;
  for (std::size_t end = 0; !output.empty(); output.remove_prefix(end)) {
    // A progress bar goes on with \r.
    end = output.find_first_of("\r\n");
    const bool whole = end != std::string_view::npos;
    partial_ += output.substr(0, whole ? end : output.size());
    end = whole ? end + 1 : output.size();
    if (!whole && partial_.size() < kLongestLine) continue;
    if (partial_.empty()) continue;
    last = std::exchange(partial_, {});
    if (options_.setup_line) options_.setup_line(task_.machine.node, last);
  }
  if (!last.empty()) tell(State::at_work, last);
}

}  // namespace dtrain
