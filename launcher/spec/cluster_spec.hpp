#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/spec/job_spec.hpp"

namespace dtrain {

// What a cluster YAML asks for, in one form: Ray's old form (head_node, worker_nodes, …) is
// rewritten into node types by the reader, as Ray does it.

enum class ProviderKind : std::uint8_t { local, ssh, aws, gcp, azure, kubernetes, slurm };
const char* to_string(ProviderKind kind) noexcept;

struct ProviderSpec {
  ProviderKind kind = ProviderKind::local;
  std::string root;  // where nodes keep their files; absolute or ~/…; empty: the default
  std::string head_address;
  std::optional<int> head_port;
  int local_nodes = 1;  // local: how many simulated nodes
  std::string head_ip;  // ssh
  std::vector<std::string> worker_ips;
  std::string external_head_ip;
  bool use_internal_ips = false;
  bool cache_stopped_nodes = true;
  // Every key of the provider's own (region, availability_zone, project_id, …), as written.
  nlohmann::json other = nlohmann::json::object();
};

struct AuthSpec {
  std::string ssh_user = "ubuntu";
  std::string ssh_private_key;  // absolute; empty: the SSH client's defaults
  std::string ssh_public_key;
  std::string ssh_proxy_command;
};

struct FileMount {
  std::string remote;
  std::string local;  // absolute
  Location location;
};

struct NodeType {
  std::string name;
  nlohmann::json node_config = nlohmann::json::object();
  std::map<std::string, double> resources;  // CPU, GPU, memory (bytes), custom
  std::map<std::string, std::string> labels;
  int min_workers = 0;
  std::optional<int> max_workers;  // absent: the cluster's max; 0 for the head's type
  std::vector<std::string> initialization_commands;  // the cluster's, unless it has its own
  std::optional<std::vector<std::string>> worker_setup_commands;  // replaces the cluster's list
};

struct ClusterSpec {
  std::string cluster_name = "default";
  int max_workers = 2;  // the reader makes it all nodes but the head for local and ssh
  double upscaling_speed = 1.0;
  double idle_timeout_minutes = 5.0;
  ProviderSpec provider;
  AuthSpec auth;
  std::string head_node_type;
  std::vector<NodeType> node_types;
  std::vector<FileMount> file_mounts;
  std::vector<std::string> cluster_synced_files;
  bool file_mounts_sync_continuously = false;
  std::vector<std::string> rsync_exclude;
  std::vector<std::string> rsync_filter;
  std::vector<std::string> initialization_commands;
  std::vector<std::string> setup_commands;  // already in front of the next two, as Ray does it
  std::vector<std::string> head_setup_commands;
  std::vector<std::string> worker_setup_commands;
  std::string source;  // the YAML's absolute path; empty: made by the program

  // The number of nodes that `up` promises: the head and each type's min_workers.
  int promised_nodes() const;
};

// As for JobSpec: every problem of the values at once, without places.
std::vector<Error> validate(const ClusterSpec& spec);

// One JSON document with sorted keys, equal for equal specs: to compare with what is up.
nlohmann::json to_json(const ClusterSpec& spec);

}  // namespace dtrain
