#include "cli/sync_transfer.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <nlohmann/json.hpp>

#include "cli/exec_channel.hpp"
#include "cli/screen.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/side_by_side.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/sync_wire.hpp"

namespace dtrain::cli {
namespace {

constexpr std::size_t kAtOnce = 8;  // nodes
constexpr std::size_t kShown = 20;  // paths of a list
constexpr std::chrono::milliseconds kDraw{100};
constexpr std::chrono::seconds kEndLimit{5};

// What the stream says, or, when it just ended, why it did.
template <typename Body>
SyncOutcome through(ExecChannel& channel, Body body) {
  FramedStream stream(channel.fd(), channel.fd());
  try {
    return body(stream);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unreachable) {
      if (const auto failure = channel.failure(kEndLimit)) throw *failure;
    }
    throw;
  }
}

std::string live_line(const Transfers& transfers, std::chrono::steady_clock::duration since) {
  std::uint64_t bytes = 0;
  std::uint64_t total = 0;
  std::uint64_t files = 0;
  std::uint64_t files_total = 0;
  std::size_t done = 0;
  int phase = static_cast<int>(SyncPhase::applying);
  for (const auto& each : transfers) {
    bytes += each->bytes;
    total += each->bytes_total;
    files += each->files;
    files_total += each->files_total;
    if (each->done) {
      ++done;
    } else {
      phase = std::min<int>(phase, each->phase);
    }
  }
  std::string line = to_string(static_cast<SyncPhase>(phase));
  if (files_total > 0) {
    line += "  " + std::to_string(files) + " of " + std::to_string(files_total) + " files, " +
            human_bytes(bytes) + " of " + human_bytes(total);
    const double seconds = std::chrono::duration<double>(since).count();
    if (seconds > 0.5 && bytes > 0) {
      const double rate = static_cast<double>(bytes) / seconds;
      line += ", " + human_bytes(static_cast<std::uint64_t>(rate)) + "/s";
      if (total > bytes) {
        const std::chrono::duration<double> left(static_cast<double>(total - bytes) / rate);
        line += ", " + human_duration(std::chrono::duration_cast<std::chrono::nanoseconds>(left)) +
                " left";
      }
    }
  }
  if (transfers.size() > 1) {
    line += "  (" + std::to_string(done) + " of " + std::to_string(transfers.size()) + " nodes)";
  }
  return line;
}

nlohmann::json to_json(const Transfer& transfer) {
  if (transfer.error) {
    nlohmann::json failed = error_json(*transfer.error);
    failed["node"] = transfer.node;
    return failed;
  }
  return {{"node", transfer.node},
          {"complete", transfer.outcome->complete()},
          {"wire_bytes", transfer.outcome->wire_bytes},
          {"mounts", sync::outcome_to_json(*transfer.outcome).at("mounts")}};
}

void print_list(const Context& context, const char* mark, const std::vector<std::string>& paths,
                std::uint64_t count) {
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, paths.size()); ++i) {
    text += std::string("  ") + mark + " " + printable(paths[i], false) + "\n";
  }
  if (count > kShown) {
    text += std::string("  ") + mark + " and " + std::to_string(count - kShown) + " more\n";
  }
  context.print(text);
}

void warn_of(const Context& context, const std::string& where, const MountOutcome& mount) {
  const std::string at = where + ": ";
  const auto name = [&](const std::string& path) {
    return (fs::path(mount.target) / path).string();
  };
  for (std::size_t i = 0; i < std::min(kShown, mount.left.size()); ++i) {
    context.warn(at + name(mount.left[i].path) + " is left: it " + mount.left[i].reason);
  }
  if (mount.left_count > kShown) {
    context.warn(at + "and " + std::to_string(mount.left_count - kShown) + " more are left");
  }
  for (const std::string& path : mount.changing) {
    context.warn(at + path + " changes while it is read; it is left out this time");
  }
  for (std::size_t i = 0; i < std::min(kShown, mount.left_out.size()); ++i) {
    context.note(at + mount.left_out[i].path + " is " + mount.left_out[i].reason +
                 ": it is not carried");
  }
}

void report(const Context& context, const Transfer& transfer, bool dry_run, bool down) {
  if (transfer.error) {
    write_all(2, error_text(*transfer.error, context.terminal.color_err, context.globals.verbose));
    return;
  }
  for (const MountOutcome& mount : transfer.outcome->mounts) {
    const std::string where = down ? "here" : transfer.node;
    if (!context.globals.quiet) {
      std::string line = where + ": " + printable(mount.target, false) + "  ";
      if (mount.nothing_done()) {
        line += "nothing to do";
      } else {
        line += std::to_string(mount.files) + (mount.files == 1 ? " file, " : " files, ") +
                human_bytes(mount.bytes) + (dry_run ? " would be sent" : " sent");
        if (mount.touched > 0) {
          line += ", " + std::to_string(mount.touched) + " only in time or mode";
        }
        if (mount.removed > 0) line += ", " + std::to_string(mount.removed) + " deleted";
      }
      context.print(line + "\n");
      if (dry_run || context.globals.verbose) {
        print_list(context, "+", mount.sent_paths, mount.files);
        print_list(context, "-", mount.removed_paths, mount.removed);
      }
    }
    warn_of(context, where, mount);
  }
}

}  // namespace

fs::path sync_state_here() {
  return paths::state_home() / "sync";
}

std::vector<std::string> sync_command(bool local, const std::string& node) {
  // Run by sh, whatever the login shell is: the agent's place is in the node's environment.
  std::string line =
      "exec \"${DTRAIN_NODE_AGENT:?this node's agent is too old for sync; dtrain up "
      "brings a new one}\" sync --name " +
      shell_quote(node) + " --state ";
  // Nodes of a local cluster are this machine: one record with what `sync down` wrote.
  line += local ? shell_quote(sync_state_here().string()) : "\"$DTRAIN_NODE_SYNC\"";
  return {"/bin/sh", "-c", line};
}

void run_transfer(const wire::ApiClient& client, const std::vector<std::string>& command,
                  Transfer& transfer, const std::function<SyncOutcome(FramedStream&)>& body) {
  try {
    ExecChannel channel(client, transfer.node, command);
    transfer.outcome = through(channel, body);
  } catch (Error& error) {
    transfer.error = error.while_doing("syncing with " + transfer.node);
  } catch (const std::exception& error) {
    transfer.error = as_defect(error);
  }
  transfer.done = true;
}

void run_transfers(const Context& context, Transfers& transfers,
                   const std::function<void(Transfer&)>& body) {
  std::mutex mutex;
  std::condition_variable changed;
  bool at_work = true;
  std::jthread work([&] {
    side_by_side(transfers.size(), kAtOnce, [&](std::size_t i) { body(*transfers[i]); });
    const std::lock_guard lock(mutex);
    at_work = false;
    changed.notify_all();
  });
  Screen screen(context.terminal, !context.globals.quiet && !context.globals.json);
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex);
  while (screen.has_live() && at_work) {
    screen.live(live_line(transfers, std::chrono::steady_clock::now() - begin));
    screen.flush();
    changed.wait_for(lock, kDraw, [&] { return !at_work; });
  }
  lock.unlock();
  work.join();
  screen.live({});
  screen.flush();
}

int report_transfers(const Context& context, const Transfers& transfers, bool dry_run, bool down) {
  bool good = true;
  bool left = false;
  nlohmann::json nodes = nlohmann::json::array();
  for (const auto& each : transfers) {
    if (context.globals.json) {
      nodes.push_back(to_json(*each));
    } else {
      report(context, *each, dry_run, down);
    }
    good = good && !each->error && each->outcome->complete();
    if (!each->error) {
      for (const MountOutcome& mount : each->outcome->mounts) left = left || mount.left_count > 0;
    }
  }
  if (context.globals.json) {
    context.print_json({{"complete", good}, {"dry_run", dry_run}, {"nodes", nodes}});
  } else if (left) {
    context.note(
        "what no sync of dtrain wrote, or was changed since, is never touched; "
        "--overwrite replaces it");
  }
  return good ? 0 : 1;
}

}  // namespace dtrain::cli
