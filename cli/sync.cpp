#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/exec_channel.hpp"
#include "cli/jobs.hpp"
#include "cli/screen.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/sync.hpp"
#include "launcher/spec/yaml.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

constexpr std::size_t kAtOnce = 8;  // nodes
constexpr std::size_t kShown = 20;  // paths of a list
constexpr std::chrono::milliseconds kDraw{100};
constexpr std::chrono::seconds kEndLimit{5};

struct Options {
  std::string from;
  std::string to;
  std::vector<std::string> nodes;
  bool all = false;
  bool dry_run = false;
  bool keep = false;    // up: --no-delete
  bool remove = false;  // down: --delete
  bool overwrite = false;
  std::vector<std::string> exclude;
};

// One node's transfer. Its thread writes, the main thread draws.
struct Transfer {
  std::string node;
  std::atomic<int> phase{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> bytes_total{0};
  std::atomic<std::uint64_t> files{0};
  std::atomic<std::uint64_t> files_total{0};
  std::atomic<bool> done{false};
  std::optional<SyncOutcome> outcome;
  std::optional<Error> error;

  void watch(const SyncProgress& progress) {
    phase = static_cast<int>(progress.phase);
    if (progress.phase != SyncPhase::sending) return;
    bytes = progress.bytes;
    bytes_total = progress.bytes_total;
    files = progress.files;
    files_total = progress.files_total;
  }
};

struct Cluster {
  bool local = false;
  std::vector<std::string> nodes;  // that can be reached, the head's first
};

Cluster look_at(const wire::ApiClient& client) {
  const nlohmann::json status = client.get("/v1/status");
  Cluster cluster;
  cluster.local = text_or(child(status, "cluster"), "provider") == "local";
  for (const nlohmann::json& node : child(status, "nodes")) {
    const std::string state = text_or(node, "state");
    if (state != "gone" && state != "drained") cluster.nodes.push_back(text_or(node, "node"));
  }
  if (cluster.nodes.empty()) {
    throw Error(ErrorCode::unreachable, "the cluster has no node that could be reached");
  }
  return cluster;
}

// Where records of what syncs wrote on this machine are.
fs::path state_here() {
  return paths::state_home() / "sync";
}

std::vector<std::string> agent_command(const Cluster& cluster, const std::string& node) {
  // Run by sh, whatever the login shell is: the agent's place is in the node's environment.
  std::string line =
      "exec \"${DTRAIN_NODE_AGENT:?this node's agent is too old for sync; dtrain up "
      "brings a new one}\" sync --name " +
      shell_quote(node);
  // Nodes of a local cluster are this machine: one record with what `sync down` wrote.
  if (cluster.local) line += " --state " + shell_quote(state_here().string());
  return {"/bin/sh", "-c", line};
}

fs::path home_here() {
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home != '/') {
    throw Error(ErrorCode::invalid, "HOME is not set to a path");
  }
  return home;
}

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

void transfer(const wire::ApiClient& client, const Cluster& cluster, Transfer& transfer,
              const std::function<SyncOutcome(FramedStream&)>& body) {
  try {
    ExecChannel channel(client, transfer.node, agent_command(cluster, transfer.node));
    transfer.outcome = through(channel, body);
  } catch (Error& error) {
    transfer.error = error.while_doing("syncing with " + transfer.node);
  } catch (const std::exception& error) {
    transfer.error.emplace(ErrorCode::internal, std::string("a defect: ") + error.what());
  }
  transfer.done = true;
}

std::string live_line(const std::vector<std::unique_ptr<Transfer>>& transfers,
                      std::chrono::steady_clock::duration since) {
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

// Runs all, kAtOnce side by side, and draws meanwhile.
void run_all(const Context& context, std::vector<std::unique_ptr<Transfer>>& transfers,
             const std::function<void(Transfer&)>& body) {
  ::signal(SIGPIPE, SIG_IGN);
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < std::min(kAtOnce, transfers.size()); ++i) {
    threads.emplace_back([&] {
      for (std::size_t mine = next++; mine < transfers.size(); mine = next++) {
        body(*transfers[mine]);
      }
    });
  }
  Screen screen(context.terminal, !context.globals.quiet && !context.globals.json);
  const auto begin = std::chrono::steady_clock::now();
  const auto all_done = [&] {
    return std::all_of(transfers.begin(), transfers.end(),
                       [](const auto& t) { return t->done.load(); });
  };
  while (screen.has_live() && !all_done()) {
    screen.live(live_line(transfers, std::chrono::steady_clock::now() - begin));
    screen.flush();
    for (int i = 0; i < 10 && !all_done(); ++i) std::this_thread::sleep_for(kDraw / 10);
  }
  for (std::thread& thread : threads) thread.join();
  screen.live({});
  screen.flush();
}

nlohmann::json notes_json(const std::vector<SyncNote>& notes) {
  nlohmann::json list = nlohmann::json::array();
  for (const SyncNote& note : notes) {
    list.push_back({{"path", printable(note.path, false)}, {"reason", note.reason}});
  }
  return list;
}

nlohmann::json paths_json(const std::vector<std::string>& paths) {
  nlohmann::json list = nlohmann::json::array();
  for (const std::string& path : paths) list.push_back(printable(path, false));
  return list;
}

nlohmann::json to_json(const Transfer& transfer) {
  if (transfer.error) {
    nlohmann::json failed = error_json(*transfer.error);
    failed["node"] = transfer.node;
    return failed;
  }
  nlohmann::json mounts = nlohmann::json::array();
  for (const MountOutcome& mount : transfer.outcome->mounts) {
    mounts.push_back({{"target", printable(mount.target, false)},
                      {"entries", mount.entries},
                      {"files", mount.files},
                      {"bytes", mount.bytes},
                      {"made", mount.made},
                      {"touched", mount.touched},
                      {"removed", mount.removed},
                      {"sent_paths", paths_json(mount.sent_paths)},
                      {"removed_paths", paths_json(mount.removed_paths)},
                      {"left", notes_json(mount.left)},
                      {"left_count", mount.left_count},
                      {"changing", paths_json(mount.changing)},
                      {"left_out", notes_json(mount.left_out)}});
  }
  return {{"node", transfer.node},
          {"complete", transfer.outcome->complete()},
          {"wire_bytes", transfer.outcome->wire_bytes},
          {"mounts", std::move(mounts)}};
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

int finish(const Context& context, const std::vector<std::unique_ptr<Transfer>>& transfers,
           const Options& options, bool down) {
  bool good = true;
  bool left = false;
  nlohmann::json nodes = nlohmann::json::array();
  for (const auto& each : transfers) {
    if (context.globals.json) {
      nodes.push_back(to_json(*each));
    } else {
      report(context, *each, options.dry_run, down);
    }
    good = good && !each->error && each->outcome->complete();
    if (!each->error) {
      for (const MountOutcome& mount : each->outcome->mounts) left = left || mount.left_count > 0;
    }
  }
  if (context.globals.json) {
    context.print_json({{"complete", good}, {"dry_run", options.dry_run}, {"nodes", nodes}});
  } else if (left) {
    context.note(
        "what no sync of dtrain wrote, or was changed since, is never touched; "
        "--overwrite replaces it");
  }
  return good ? 0 : 1;
}

std::vector<SyncMount> mounts_of_yaml(const Context& context) {
  const std::string name = context.cluster();
  const auto state = load_cluster(name);
  if (!state || state->source.empty()) {
    throw Error(ErrorCode::usage, "cluster " + name + " was brought up without a YAML")
        .with_hint("dtrain sync up LOCAL REMOTE");
  }
  const ClusterSpec spec = read_cluster_yaml(state->source, process_environment()).spec;
  if (spec.file_mounts.empty()) {
    throw Error(ErrorCode::usage, state->source + " has no file_mounts")
        .with_hint("dtrain sync up LOCAL REMOTE");
  }
  std::vector<SyncMount> mounts;
  for (const FileMount& each : spec.file_mounts) {
    SyncMount mount;
    mount.target = each.remote;
    mount.source = each.local;
    mount.exclude = spec.rsync_exclude;
    mount.filter_files = spec.rsync_filter;
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

int run_up(Context& context, const Options& options) {
  if (!options.from.empty() && options.to.empty()) {
    throw Error(ErrorCode::usage, "where to?").with_hint("dtrain sync up LOCAL REMOTE");
  }
  if (options.all && !options.nodes.empty()) {
    throw Error(ErrorCode::usage, "--all and --node exclude each other");
  }
  std::vector<SyncMount> mounts;
  if (options.from.empty()) {
    mounts = mounts_of_yaml(context);
  } else {
    SyncMount mount;
    mount.source = options.from;
    mount.target = options.to;
    mounts.push_back(std::move(mount));
  }
  for (SyncMount& mount : mounts) {
    mount.exclude.insert(mount.exclude.end(), options.exclude.begin(), options.exclude.end());
    mount.remove = !options.keep;
    mount.overwrite = options.overwrite;
  }
  const wire::ApiClient client = context.client();
  const Cluster cluster = look_at(client);
  std::vector<std::string> nodes = options.nodes.empty() ? cluster.nodes : options.nodes;
  if (cluster.local) {
    context.note("the nodes of this cluster are this machine: the files go to your own home");
    nodes.resize(1);
  }
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (const std::string& node : nodes) {
    transfers.push_back(std::make_unique<Transfer>());
    transfers.back()->node = node;
  }
  std::mutex cache;  // one transfer writes the cache; the others compute for themselves
  run_all(context, transfers, [&](Transfer& each) {
    transfer(client, cluster, each, [&](FramedStream& stream) {
      SendOptions sending;
      sending.dry_run = options.dry_run;
      sending.watch = [&each](const SyncProgress& progress) { each.watch(progress); };
      const std::unique_lock lock(cache, std::try_to_lock);
      if (lock) sending.hash_cache = state_here() / "hashes";
      request_receive(stream);
      return send_trees(stream, mounts, sending);
    });
  });
  return finish(context, transfers, options, false);
}

int run_down(Context& context, const Options& options) {
  if (options.nodes.size() > 1) {
    throw Error(ErrorCode::usage, "sync down takes files of one node at a time");
  }
  const wire::ApiClient client = context.client();
  const Cluster cluster = look_at(client);
  std::vector<std::unique_ptr<Transfer>> transfers;
  transfers.push_back(std::make_unique<Transfer>());
  transfers.back()->node = options.nodes.empty() ? cluster.nodes.front() : options.nodes.front();
  SyncMount mount;
  mount.source = options.from;
  mount.exclude = options.exclude;
  mount.remove = options.remove;
  mount.overwrite = options.overwrite;
  ReceiveOptions receiving;
  receiving.home = home_here();
  receiving.state = state_here();
  receiving.targets = {fs::absolute(options.to)};
  run_all(context, transfers, [&](Transfer& each) {
    receiving.watch = [&each](const SyncProgress& progress) { each.watch(progress); };
    transfer(client, cluster, each, [&](FramedStream& stream) {
      request_send(stream, {mount}, options.dry_run);
      return receive_trees(stream, receiving);
    });
  });
  return finish(context, transfers, options, true);
}

void add_common(CLI::App& app, Options& options) {
  app.add_flag("-n,--dry-run", options.dry_run, "Say what would be done, and do nothing");
  app.add_flag("--overwrite", options.overwrite,
               "Also replace files that no sync wrote or that were changed since");
  app.add_option("--exclude", options.exclude, "A pattern as in .gitignore; again for more")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
  app.fallthrough();
}

}  // namespace

Verb add_sync(CLI::App& root) {
  auto options = std::make_shared<Options>();
  CLI::App* app = add_verb(
      root, "sync", "Bring files to nodes, or from one",
      "  dtrain sync up                          the cluster YAML's file_mounts, to all nodes\n"
      "  dtrain sync up ./code '~/code'          a folder's content, or one file\n"
      "  dtrain sync down '~/results' ./results  from the head's node\n"
      "Only what an earlier sync wrote is replaced or deleted; everything else is left and named.\n"
      "Exit code: 0 all is there as it is here, 1 something failed or was left.\n");
  app->require_subcommand(1);
  CLI::App* up = app->add_subcommand("up", "From here to nodes");
  up->add_option("local", options->from, "A folder or file here (default: the YAML's file_mounts)")
      ->type_name("LOCAL");
  up->add_option("remote", options->to, "Where it goes: absolute, ~/…, or relative to the home")
      ->type_name("REMOTE");
  up->add_option("--node", options->nodes, "To this node; again for more (default: all)")
      ->type_name("NODE")
      ->allow_extra_args(false);
  up->add_flag("--all", options->all, "To all nodes, as without --node");
  up->add_flag("--no-delete", options->keep, "Delete nothing that is no longer here");
  add_common(*up, *options);
  CLI::App* down = app->add_subcommand("down", "From a node to here");
  down->add_option("remote", options->from, "A folder or file there")
      ->type_name("REMOTE")
      ->required();
  down->add_option("local", options->to, "Where it goes here")->type_name("LOCAL")->required();
  down->add_option("--node", options->nodes, "From this node (default: the head's)")
      ->type_name("NODE")
      ->allow_extra_args(false);
  down->add_flag("--delete", options->remove,
                 "Delete what an earlier sync wrote and is gone there");
  add_common(*down, *options);
  return {app,
          [options, up](Context& context) {
            return up->parsed() ? run_up(context, *options) : run_down(context, *options);
          },
          std::nullopt};
}

}  // namespace dtrain::cli
