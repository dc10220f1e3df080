#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/spec/job_spec.hpp"
#include "launcher/spec/storage_spec.hpp"

namespace dtrain {

// What a cluster YAML asks for, in one form: Ray's old form (head_node, worker_nodes, …) is
// rewritten into node types by the reader, as Ray does it.

enum class ProviderKind : std::uint8_t { local, ssh, aws, gcp, azure, kubernetes, slurm };
inline constexpr ProviderKind kProviderKinds[] = {
    ProviderKind::local, ProviderKind::ssh,        ProviderKind::aws,  ProviderKind::gcp,
    ProviderKind::azure, ProviderKind::kubernetes, ProviderKind::slurm};
const char* to_string(ProviderKind kind) noexcept;

// One machine that is there already, and how ssh reaches it. What is empty is left to the user's
// ~/.ssh/config.
struct HostSpec {
  NodeId node;          // its name in the cluster: as given, else made of `host`
  std::string host;     // as ssh from here knows it: an address, a name, an alias
  std::string address;  // as the other nodes reach it; empty: `host`'s own
  std::optional<int> ssh_port;
  std::string ssh_user;
  std::string ssh_private_key;              // absolute
  std::string ssh_proxy_command;            // as OpenSSH's ProxyCommand
  std::vector<std::string> ssh_proxy_jump;  // [user@]host[:port], the first is met first

  bool operator==(const HostSpec&) const = default;
};
// The name of a host's node where none is given: the host's, with - for what a name may not have.
NodeId node_of_host(std::string_view host);

// One item of ssh_proxy_jump; absent when it is none.
struct SshJump {
  std::string user;  // empty: as ssh itself would
  std::string host;
  std::optional<int> port;
};
std::optional<SshJump> parse_jump(std::string_view text);

struct ProviderSpec {
  ProviderKind kind = ProviderKind::local;
  std::string root;  // where nodes keep their files; absolute or ~/…; empty: the default
  std::string head_address;
  std::optional<int> head_port;
  int local_nodes = 1;          // local: how many simulated nodes
  std::vector<HostSpec> hosts;  // ssh: the head first; what `auth` says is in each
  bool use_internal_ips = false;
  bool cache_stopped_nodes = false;
  // Where the YAML says which type it is, and security_group's IpPermissions; line 0: not known.
  Location location;
  Location rules_location;
  // Every key of the provider's own (region, availability_zone, project_id, …), as written.
  nlohmann::json other = nlohmann::json::object();
};

// The whole cluster goes down by itself once nothing has run for so long.
struct DownWhenIdle {
  double minutes = 0;
  bool terminate = false;  // the head's machine too, with all that is on it; else it is stopped

  bool operator==(const DownWhenIdle&) const = default;
};

struct AuthSpec {
  std::string ssh_user = "ubuntu";  // provider ssh: empty unless it is given
  std::optional<int> ssh_port;
  std::string ssh_private_key;  // absolute; empty: the SSH client's defaults
  std::string ssh_public_key;
  std::string ssh_proxy_command;
  std::vector<std::string> ssh_proxy_jump;
};

// When a node is ready to run jobs, beyond being up.
struct ReadySpec {
  std::string command;      // a shell command that must exit with 0; empty: none
  std::optional<int> gpus;  // how many GPUs a node must have
  std::chrono::seconds timeout{60};
};

struct FileMount {
  std::string remote;
  std::string local;  // absolute
};

// A file or folder of this machine that the YAML names: it is to be there before any node is
// reached. That it is there is not the reader's matter.
struct LocalPath {
  enum class What : std::uint8_t { mount, key, public_key };
  What what = What::mount;
  std::string key;   // as in messages: "auth.ssh_private_key"
  std::string path;  // absolute
  Location location;
};

struct NodeType {
  std::string name;
  nlohmann::json node_config = nlohmann::json::object();
  std::map<std::string, double> resources;  // CPU, GPU, memory (bytes), custom
  std::map<std::string, std::string> labels;
  int min_workers = 0;
  std::optional<int> max_workers;        // absent: the cluster's max; 0 for the head's type
  std::optional<double> idle_timeout_s;  // in place of the cluster's idle_timeout_minutes
  int priority = 0;                      // of types that fit as well, the larger is started
  // aws alone: what is tried after node_config's InstanceType, in this order; where there is no
  // spot machine, one on demand; how machines stand to each other (cluster, spread, partition;
  // empty: as it comes); an Elastic Fabric Adapter on each card.
  std::vector<std::string> fallback_instance_types;
  bool on_demand_fallback = false;
  std::string placement_group;
  bool efa = false;
  std::vector<std::string> initialization_commands;  // the cluster's, unless it has its own
  std::optional<std::vector<std::string>> worker_setup_commands;  // replaces the cluster's list
  Location location;  // where the YAML has it; line 0: not known
};

// One node that `up` promises.
struct PromisedNode {
  NodeId node;       // empty: any machine of that type
  std::string type;  // empty: hosts and this machine's nodes have none

  bool operator==(const PromisedNode&) const = default;
};

// The head's machine with provider slurm.
inline constexpr const char* kLoginNode = "login";
// And of the head's where it has an allocation of its own.
inline constexpr const char* kHeadNode = "head-node";

// Of a node_config of AWS's.
bool is_spot(const nlohmann::json& node_config);

struct ClusterSpec {
  std::string cluster_name = "default";
  int max_workers = 2;  // the reader makes it all nodes but the head for local and ssh
  double upscaling_speed = 1.0;
  double idle_timeout_minutes = 5.0;
  std::optional<double> max_cost_per_hour;  // US dollars, of all machines; absent: no bound
  Location max_cost_location;               // where the YAML says so; line 0: not known
  std::optional<DownWhenIdle> down_when_idle;
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
  ReadySpec ready;
  StorageSpec storage;
  std::vector<LocalPath> local_paths;
  std::string source;  // the YAML's absolute path; empty: made by the program

  // The nodes that `up` promises to make or to reach, the head first: the hosts that are listed, so
  // many of this machine's, or each type's min_workers. Of Slurm's the head's machine, the login
  // node or an allocation of its own, alone: the head asks for the others.
  std::vector<PromisedNode> promised() const;
  // The head is in allocations of Slurm's, one after the other.
  bool head_moves() const {
    return provider.kind == ProviderKind::slurm && !head_node_type.empty();
  }
  // How many machines of each type are to stand ready beside the head's, and how many there may be
  // when jobs wait, in the YAML's order.
  struct Workers {
    std::string type;
    int count = 0;
    int most = 0;
  };
  std::vector<Workers> workers() const;
  // The head may have to ask for machines beside those that `up` makes: jobs may have more, or spot
  // machines are taken back.
  bool grows() const;
  bool has_type(const std::string& name) const;
  int promised_nodes() const { return static_cast<int>(promised().size()); }
};

// As for JobSpec: every problem of the values at once, without places.
std::vector<Error> validate(const ClusterSpec& spec);

// One JSON document with sorted keys, equal for equal specs: to compare with what is up.
nlohmann::json to_json(const ClusterSpec& spec);
// The same spec again, but for where its parts came from (locations, local_paths, source); what is
// absent is the default. Throws Error(invalid).
ClusterSpec cluster_spec_from_json(const nlohmann::json& json);

}  // namespace dtrain
