#include "cli/sync.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/jobs.hpp"
#include "cli/staging.hpp"
#include "cli/sync_transfer.hpp"
#include "launcher/cluster/session_sync.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/sync.hpp"
#include "launcher/spec/yaml.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

struct Cluster {
  bool local = false;
  std::vector<std::string> nodes;  // that have not gone, the head's first
};

Cluster look_at(const Context& context, const wire::ApiClient& client) {
  const nlohmann::json status = client.get("/v1/status");
  Cluster cluster;
  cluster.local = text_or(child(status, "cluster"), "provider") == "local";
  std::string head;
  for (const nlohmann::json& node : child(status, "nodes")) {
    const std::string name = text_or(node, "node");
    if (text_or(node, "state") != "gone") cluster.nodes.push_back(name);
    if (head.empty() && wire::get_bool(node, "head", false)) head = name;
  }
  if (head.empty()) {  // an older head does not say, nor does one whose own node is away
    const auto state = load_cluster(context.cluster());
    if (state && !state->nodes.empty()) head = state->nodes.front().node.str();
  }
  std::stable_partition(cluster.nodes.begin(), cluster.nodes.end(),
                        [&](const std::string& node) { return node == head; });
  if (cluster.nodes.empty()) {
    throw Error(ErrorCode::unreachable, "the cluster has no node that could be reached");
  }
  return cluster;
}

fs::path home_here() {
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home != '/') {
    throw Error(ErrorCode::invalid, "HOME is not set to a path");
  }
  return home;
}

// What the cluster's YAML says now; absent when it was brought up without one.
std::optional<ClusterSpec> spec_of_cluster(const Context& context) {
  const auto state = load_cluster(context.cluster());
  if (!state || state->source.empty()) return std::nullopt;
  return read_cluster_yaml(state->source, process_environment()).spec;
}

std::vector<SyncMount> mounts_of_yaml(const Context& context) {
  const auto found = spec_of_cluster(context);
  if (!found) {
    throw Error(ErrorCode::usage, "cluster " + context.cluster() + " was brought up without a YAML")
        .with_hint("dtrain sync up LOCAL REMOTE");
  }
  const ClusterSpec& spec = *found;
  if (spec.file_mounts.empty()) {
    throw Error(ErrorCode::usage, spec.source + " has no file_mounts")
        .with_hint("dtrain sync up LOCAL REMOTE");
  }
  return mounts_of(spec, false);
}

}  // namespace

int sync_up(Context& context, const SyncRequest& options) {
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
    if (options.yaml_rules) {
      if (const auto spec = spec_of_cluster(context)) {
        mount.exclude = spec->rsync_exclude;
        mount.filter_files = spec->rsync_filter;
      }
    }
    mounts.push_back(std::move(mount));
  }
  for (SyncMount& mount : mounts) {
    mount.exclude.insert(mount.exclude.end(), options.exclude.begin(), options.exclude.end());
    mount.remove = !options.keep;
    mount.overwrite = options.overwrite;
  }
  const wire::ApiClient client = context.client();
  const Cluster cluster = look_at(context, client);
  std::vector<std::string> nodes = options.nodes.empty() ? cluster.nodes : options.nodes;
  if (cluster.local) {
    context.note("the nodes of this cluster are this machine: the files go to your own home");
    nodes.resize(1);
  }
  if (options.head_only) nodes = {cluster.nodes.front()};
  Transfers transfers;
  for (const std::string& node : nodes) {
    transfers.push_back(std::make_unique<Transfer>());
    transfers.back()->node = node;
  }
  std::mutex cache;  // one transfer writes the cache; the others compute for themselves
  run_transfers(context, transfers, [&](Transfer& each) {
    run_transfer(client, sync_command(cluster.local, each.node), each, [&](FramedStream& stream) {
      SendOptions sending;
      sending.dry_run = options.dry_run;
      sending.watch = [&each](const SyncProgress& progress) { each.watch(progress); };
      const std::unique_lock lock(cache, std::try_to_lock);
      if (lock) sending.hash_cache = paths::file_sums();
      request_receive(stream);
      return send_trees(stream, mounts, sending);
    });
  });
  return report_transfers(context, transfers, options.dry_run, false);
}

int sync_down(Context& context, const SyncRequest& options) {
  if (options.nodes.size() > 1) {
    throw Error(ErrorCode::usage, "sync down takes files of one node at a time");
  }
  const wire::ApiClient client = context.client();
  const Cluster cluster = look_at(context, client);
  Transfers transfers;
  transfers.push_back(std::make_unique<Transfer>());
  transfers.back()->node = options.nodes.empty() ? cluster.nodes.front() : options.nodes.front();
  SyncMount mount;
  mount.source = options.from;
  mount.exclude = options.exclude;
  mount.remove = options.remove;
  mount.overwrite = options.overwrite;
  ReceiveOptions receiving;
  receiving.home = home_here();
  receiving.state = sync_state_here();
  receiving.targets = {fs::absolute(options.to)};
  run_transfers(context, transfers, [&](Transfer& each) {
    receiving.watch = [&each](const SyncProgress& progress) { each.watch(progress); };
    run_transfer(client, sync_command(cluster.local, each.node), each, [&](FramedStream& stream) {
      request_send(stream, {mount}, options.dry_run);
      return receive_trees(stream, receiving);
    });
  });
  return report_transfers(context, transfers, options.dry_run, true);
}

namespace {

void add_common(CLI::App& app, SyncRequest& options) {
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
  auto options = std::make_shared<SyncRequest>();
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
  up->add_option("remote", options->to, "Where it goes: absolute, ~/DIR, or relative to the home")
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
            return up->parsed() ? sync_up(context, *options) : sync_down(context, *options);
          },
          std::nullopt};
}

}  // namespace dtrain::cli
