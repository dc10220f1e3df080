#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/provider/provider.hpp"

// What this machine remembers of its clusters, below paths::state_home(). A cache: the world is
// asked before anything is believed.
namespace dtrain {

// cluster.json
struct ClusterState {
  std::string name;
  ClusterId id;
  std::string provider;
  std::vector<Machine> nodes;
  fs::path head_root;
  fs::path head_socket;   // of a head on another machine, as that one knows it
  std::string agent;      // the binary that its processes run
  nlohmann::json spec;    // what `up` was asked for, to compare
  std::string source;     // the cluster YAML; empty: none
  std::string created;    // RFC 3339
  bool prepared = false;  // every node has its identity: only processes may be missing
};

// What the spec says of it, created now.
ClusterState remembered(const ClusterSpec& spec, const ClusterId& id);

nlohmann::json to_json(const ClusterState& state);
ClusterState cluster_state_from_json(const nlohmann::json& json);

// Absent when there is no such cluster. Throws Error(invalid) naming the file when it is damaged.
std::optional<ClusterState> load_cluster(const std::string& name);
void save_cluster(const ClusterState& state);

// The cluster that is meant: `wanted` if not empty, else DTRAIN_CLUSTER, else the current one.
// Throws Error(unreachable) when there is none, Error(usage) for an unsafe name.
std::string choose_cluster(const std::string& wanted);
std::optional<std::string> current_cluster();
void set_current_cluster(const std::string& name);
void clear_current_cluster(const std::string& name);  // if it is that one

// One that `submit --on` brought up for its job and gives back when no job is left; `up` makes it
// one that stays. Known on this machine alone, and gone with the cluster's folder.
bool is_temporary(const std::string& name);
void set_temporary(const std::string& name, bool temporary);

// That an `up` touches machines elsewhere of which cluster.json does not tell yet; `source` is its
// YAML, by which alone they are found when it is cut off. Gone with the cluster's folder.
void set_unnoted(const std::string& name, const std::string& source);
void clear_unnoted(const std::string& name);
// Throws Error(conflict) when one was cut off so: there is no cluster.json.
void refuse_unnoted(const std::string& name);

// Held by up and down of one cluster. Waits for its turn; `waiting` is called once if it must, and
// Error(failed) thrown when `stop` is asked for meanwhile.
class ClusterLock {
 public:
  static ClusterLock take(const std::string& name, const std::function<void()>& waiting,
                          const std::stop_token& stop = {});

 private:
  explicit ClusterLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace dtrain
