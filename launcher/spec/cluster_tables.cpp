#include <array>
#include <vector>

#include "launcher/spec/limits.hpp"
#include "launcher/spec/table.hpp"

namespace dtrain::spec {

using nlohmann::json;

namespace {

constexpr double kLarge = 1e9;

Shape nodes() {
  return Shape::whole(0, limits::kNodes);
}

Shape text_map() {
  return Shape::special("mapping of texts to texts",
                        json{{"type", "object"}, {"additionalProperties", {{"type", "string"}}}});
}

Shape amount_of_bytes() {
  return Shape::special("amount of bytes (50GiB, 500MB, or bytes)",
                        json{{"type", {"string", "integer", "null"}}});
}

}  // namespace

const Table& docker_table() {
  static const Table table{
      "docker",
      {
          key("image", Shape::text(), "", "The image of all nodes."),
          key("head_image", Shape::text(), "", "The head's image."),
          key("worker_image", Shape::text(), "", "The workers' image."),
          key("container_name", Shape::text(), "", "The container's name."),
          key("pull_before_run", Shape::boolean(), true, "Whether to pull the image first."),
          key("run_options", Shape::texts(), json::array(), "Options of docker run."),
          key("head_run_options", Shape::texts(), json::array(), "The same for the head."),
          key("worker_run_options", Shape::texts(), json::array(), "The same for the workers."),
          key("disable_automatic_runtime_detection", Shape::boolean(), false,
              "Not to look for the NVIDIA runtime."),
          key("disable_shm_size_detection", Shape::boolean(), false, "Not to set --shm-size."),
          key("use_podman", Shape::boolean(), false, "podman in place of docker."),
      }};
  return table;
}

const Table& node_type_docker_table() {
  static const Table table{
      "docker of a node type",
      {
          key("worker_image", Shape::text(), "", "The image of nodes of this type."),
          key("pull_before_run", Shape::boolean(), true, "Whether to pull the image first."),
          key("worker_run_options", Shape::texts(), json::array(), "Options of docker run."),
      }};
  return table;
}

const Table& auth_table() {
  static const Table table{
      "auth",
      {
          example(expands(key("ssh_user", Shape::text(), "ubuntu",
                              "Who to log in as. With provider ssh, absent: as ssh itself would.")),
                  "ssh_user: ubuntu"),
          example(expands(key("ssh_port", Shape::whole(1, limits::kPort), nullptr,
                              "sshd's port. Absent: as ssh itself would.")),
                  "ssh_port: 22"),
          example(expands(key("ssh_private_key", Shape::text(), nullptr,
                              "The key's file. Absent: what ssh itself would use.")),
                  "ssh_private_key: ~/.ssh/id_ed25519"),
          example(
              expands(key("ssh_public_key", Shape::text(), nullptr,
                          "The file of its public half: what machines of aws let in; azure needs "
                          "it.")),
              "ssh_public_key: ~/.ssh/id_ed25519.pub"),
          example(expands(key("ssh_proxy_command", Shape::text(), nullptr,
                              "As OpenSSH's ProxyCommand.")),
                  "ssh_proxy_command: \"ssh -W %h:%p bastion\""),
          example(expands(key("ssh_proxy_jump", Shape::texts(), json::array(),
                              "Hosts to go through, [user@]host[:port], the first one first.")),
                  "ssh_proxy_jump: [me@bastion]"),
          ray_only(key("ssh_proxy_use_node_id", Shape::boolean(), false,
                       "To give a proxy the provider's id of a node in place of its address.")),
      }};
  return table;
}

const Table& host_table() {
  static const Table table{
      "an item of provider.hosts",
      {
          example(required(expands(key("host", Shape::text(), nullptr,
                                       "An address, a name, or an alias of ~/.ssh/config."))),
                  "host: 10.0.0.6"),
          example(
              key("node", Shape::text(), nullptr, "The node's name. Absent: made of the host's."),
              "node: gpu-1"),
          example(expands(key("address", Shape::text(), nullptr,
                              "Where the other nodes reach it, if that differs.")),
                  "address: 10.0.0.6"),
          example(expands(key("ssh_user", Shape::text(), nullptr, "In place of auth.ssh_user.")),
                  "ssh_user: ubuntu"),
          example(expands(key("ssh_port", Shape::whole(1, limits::kPort), nullptr,
                              "In place of auth.ssh_port.")),
                  "ssh_port: 22"),
          example(expands(key("ssh_private_key", Shape::text(), nullptr,
                              "In place of auth.ssh_private_key.")),
                  "ssh_private_key: ~/.ssh/id_ed25519"),
          example(expands(key("ssh_proxy_command", Shape::text(), nullptr,
                              "In place of auth.ssh_proxy_command.")),
                  "ssh_proxy_command: \"ssh -W %h:%p bastion\""),
          example(expands(key("ssh_proxy_jump", Shape::texts(), nullptr,
                              "In place of auth.ssh_proxy_jump.")),
                  "ssh_proxy_jump: [me@bastion]"),
      }};
  return table;
}

const Table& ready_table() {
  static const Table table{
      "ready",
      {
          example(key("command", Shape::text(), "",
                      "A shell command that exits with 0 when a node is ready for jobs."),
                  "command: nvidia-smi -L"),
          example(key("gpus", Shape::whole(0, limits::kGpus), nullptr,
                      "How many GPUs each node must have."),
                  "gpus: 8"),
          example(key("timeout_s", Shape::whole(1, limits::kGraceSeconds), 60,
                      "How long the command may take."),
                  "timeout_s: 60"),
      }};
  return table;
}

const Table& down_when_idle_table() {
  static const Table table{
      "down_when_idle",
      {
          example(key("minutes", Shape::number(limits::kLeastIdleMinutes, kLarge), 60.0,
                      "After how many minutes without a job, an exec, an attach, a sync or a "
                      "pull."),
                  "minutes: 60"),
          example(key("head", Shape::choice({"stop", "terminate"}), "stop",
                      "What becomes of the head's machine: stopped, it keeps its disk with jobs, "
                      "logs, results and checkpoints, and `dtrain up` brings it back; terminated, "
                      "all that nobody has pulled is lost."),
                  "head: terminate"),
      }};
  return table;
}

const Table& retention_table() {
  static const Table table{
      "retention",
      {
          example(key("days", Shape::whole(1, limits::kRetentionDays), nullptr,
                      "Jobs that ended so many days ago are forgotten, with logs and checkpoints. "
                      "Absent: time alone removes nothing."),
                  "days: 30"),
          example(key("size", amount_of_bytes(), nullptr,
                      "While the jobs that have ended fill more of the head's disk, the oldest are "
                      "forgotten. Absent: size alone removes nothing."),
                  "size: 50GiB"),
      }};
  return table;
}

const Table& node_type_table() {
  static const Table table{
      "a node type",
      {
          key("node_config", Shape::open(), json::object(),
              "The node as the provider's own API describes it."),
          example(
              key("resources",
                  Shape::special("mapping of names to amounts",
                                 json{{"type", "object"},
                                      {"additionalProperties", {{"type", {"number", "string"}}}}}),
                  json::object(),
                  "What a node has: CPU, GPU, memory (bytes, or 64GiB) and names of your own. "
                  "Absent: what the node itself says."),
              "resources: {CPU: 8, GPU: 1}"),
          key("labels", text_map(), json::object(), "Labels of nodes of this type."),
          key("min_workers", nodes(), 0, "How many there are at least."),
          example(
              clamped(key("max_workers", nodes(), nullptr,
                          "How many there are at most. Absent: the cluster's `max_workers`; 0 for "
                          "the head's type.")),
              "max_workers: 4"),
          example(key("idle_timeout_s", Shape::number(0, kLarge), nullptr,
                      "After how many idle seconds a node of this type goes. Absent: the "
                      "cluster's `idle_timeout_minutes`."),
                  "idle_timeout_s: 300"),
          example(key("priority", Shape::whole(-limits::kPriority, limits::kPriority), 0,
                      "Of types that fit as well, the one with the larger is started."),
                  "priority: 1"),
          example(key("fallback_instance_types", Shape::texts(), json::array(),
                      "With aws: what is tried after `InstanceType`, in this order, where no zone "
                      "has room."),
                  "fallback_instance_types: [g5.2xlarge, g4dn.2xlarge]"),
          key("on_demand_fallback", Shape::boolean(), false,
              "With aws, of spot machines: where there is none, one on demand."),
          key("placement_group", Shape::choice({"cluster", "spread", "partition"}), nullptr,
              "With aws: the machines of this type are in a placement group of their own, of this "
              "strategy."),
          key("efa", Shape::boolean(), false,
              "With aws: an Elastic Fabric Adapter on each network card of the machine."),
          key("initialization_commands", Shape::texts(), nullptr,
              "In place of the cluster's list."),
          key("worker_setup_commands", Shape::texts(), nullptr, "In place of the cluster's list."),
          key("docker", Shape::mapping(node_type_docker_table()), nullptr,
              "Containers; not built yet: a warning."),
      }};
  return table;
}

const Table& provider_table(ProviderKind kind) {
  static const std::vector<Table> tables = [] {
    std::vector<std::string> names;
    for (const ProviderKind each : kProviderKinds) names.emplace_back(to_string(each));
    const std::vector<Key> common{
        example(expands(required(
                    key("type", Shape::choice(names), nullptr, "Where the nodes come from."))),
                "provider: {type: local}"),
        example(expands(key("root", Shape::text(), nullptr,
                            "Where nodes keep their files: absolute, or below ~/. Absent: "
                            "~/.dtrain.")),
                "root: /data/dtrain"),
        example(expands(key("head_address", Shape::text(), nullptr,
                            "Where nodes find the head. Absent: each address of the head is "
                            "tried.")),
                "head_address: 10.0.0.5"),
        example(expands(key("head_port", Shape::whole(1, limits::kPort), nullptr,
                            "The head's TLS port. Absent: the first free one of 28500 to 28599, "
                            "and then the same.")),
                "head_port: 28500"),
        expands(key("use_internal_ips", Shape::boolean(), false,
                    "To reach nodes by their internal addresses.")),
        expands(key("cache_stopped_nodes", Shape::boolean(), false,
                    "With aws: nodes that jobs need no more are stopped rather than deleted, and "
                    "started again for later ones. Their disks cost meanwhile; Ray's default is "
                    "true.")),
        ray_only(key("disable_node_updaters", Shape::boolean(), false, "Ray's.")),
        ray_only(key("module", Shape::text(), nullptr, "Ray's providers outside of Ray.")),
    };
    const std::vector<Key> hosts{
        example(expands(key("head_ip", Shape::text(), nullptr,
                            "The head: an address, a name, or an alias of ~/.ssh/config.")),
                "head_ip: 10.0.0.5"),
        example(expands(key("worker_ips", Shape::texts(), json::array(), "The other nodes.")),
                "worker_ips: [10.0.0.6, 10.0.0.7]"),
        example(expands(key("external_head_ip", Shape::text(), nullptr,
                            "The head's address from here, where it is another one.")),
                "external_head_ip: 192.0.2.10"),
        ray_only(key("coordinator_address", Shape::text(), nullptr,
                     "Ray's coordinator of hosts on premises; an error here: list the hosts.")),
    };
    const auto text = [](const char* name, json fallback, const char* doc) {
      return expands(key(name, Shape::text(), std::move(fallback), doc));
    };
    const auto open = [](const char* name, const char* doc) {
      return expands(key(name, Shape::open(), json::object(), doc));
    };

    std::vector<Table> made;
    for (const ProviderKind each : kProviderKinds) {
      Table table{std::string("provider with type ") + to_string(each), common};
      const auto add = [&](const std::vector<Key>& keys) {
        table.keys.insert(table.keys.end(), keys.begin(), keys.end());
      };
      switch (each) {
        case ProviderKind::local:
          add({example(expands(key("nodes", Shape::whole(1, limits::kLocalNodes), 1,
                                   "How many nodes to simulate on this machine. With `head_ip` "
                                   "this is Ray's `local`, which is `ssh` here.")),
                       "nodes: 4")});
          add(hosts);
          break;
        case ProviderKind::ssh:
          add({example(
              expands(key("hosts",
                          Shape::special(
                              "list of texts or mappings",
                              json{{"type", "array"}, {"items", {{"type", {"string", "object"}}}}}),
                          nullptr,
                          "The machines, the head first: each a host, host:port, [IPv6]:port, or "
                          "a mapping (below). "
                          "In place of `head_ip` and `worker_ips`.")),
              "hosts: [gpu-1, gpu-2]")});
          add(hosts);
          break;
        case ProviderKind::aws:
          add({text("region", "us-west-2", "The region."),
               text("availability_zone", nullptr,
                    "Zones with commas between, tried in order. Absent: any of the region's."),
               open("security_group", "`GroupName` and `IpPermissions`."),
               open("key_pair", "`key_name`."),
               ray_only(open("cloudwatch", "Ray's agent and dashboard of CloudWatch.")),
               ray_only(open("aws_credentials",
                             "Credentials as Ray hands them to boto3; they are not read: here aws "
                             "finds its own."))});
          break;
        case ProviderKind::gcp:
          add({text("region", "us-west1", "The region."),
               text("availability_zone", "us-west1-a", "The zone."),
               text("project_id", nullptr, "The project."),
               open("gcp_credentials", "`type` and `credentials`.")});
          break;
        case ProviderKind::azure:
          add({text("location", "westus2", "The location."),
               text("resource_group", "ray-cluster", "The resource group."),
               text("subscription_id", nullptr, "The subscription."),
               text("availability_zone", nullptr, "auto, none, or zones with commas between."),
               text("msi_name", nullptr, "The managed identity's name."),
               text("msi_resource_group", nullptr, "Its resource group."),
               text("msi_identity_id", nullptr, "Its id."),
               text("msi_identity_principal_id", nullptr, "Its principal's id."),
               text("subnet_id", nullptr, "The subnet."),
               text("subnet_mask", nullptr, "The addresses of a subnet that is made."),
               text("unique_id", nullptr, "What is added to the names of resources."),
               open("tags", "Tags of all resources."),
               expands(key("use_external_head_ip", Shape::boolean(), false,
                           "To reach the head by its public address."))});
          break;
        case ProviderKind::kubernetes:
          add({text("namespace", "default", "The namespace."),
               text("context", nullptr, "The context of kubeconfig. Absent: the current one."),
               text("kubeconfig", nullptr, "Its file. Absent: as kubectl finds it."),
               ray_only(key("services", Shape::special("list of mappings", json{{"type", "array"}}),
                            json::array(), "Ray's services.")),
               ray_only(open("autoscaler_service_account", "Ray's.")),
               ray_only(open("autoscaler_role", "Ray's.")),
               ray_only(open("autoscaler_role_binding", "Ray's."))});
          break;
        case ProviderKind::slurm:
          add({text("login_node", nullptr,
                    "The host that has sbatch, reached by ssh. Absent: this machine."),
               text("shared_folder", "~/.dtrain",
                    "A folder that the login node and the nodes share, absolute or below ~/: what "
                    "they start with goes through it."),
               text("partition", nullptr, "The partition. Absent: Slurm's default."),
               text("account", nullptr, "The account to charge."),
               text("qos", nullptr, "The quality of service.")});
          break;
      }
      made.push_back(std::move(table));
    }
    return made;
  }();
  return tables[static_cast<std::size_t>(kind)];
}

const Table& cluster_table() {
  static const Table table{
      "a cluster YAML",
      {
          example(key("cluster_name", Shape::text(), "default", "1 to 255 of a-z A-Z 0-9 . _ -."),
                  "cluster_name: local"),
          clamped(
              key("max_workers", nodes(), 2,
                  "How many nodes there are at most, without the head; not fewer than all "
                  "`min_workers` together. With provider local and ssh: all, if absent; with slurm "
                  "those that the types' "
                  "`min_workers` and `max_workers` say, and of a type that has neither as many as "
                  "jobs need.")),
          key("upscaling_speed", Shape::number(0, kLarge), 1.0,
              "How many nodes of a type the head may have coming, as a multiple of those that are "
              "there; 5 in any case, and all that one job needs. With provider aws."),
          key("idle_timeout_minutes", Shape::number(0, kLarge), 5.0,
              "After how many idle minutes a node above `min_workers` goes."),
          example(key("max_cost_per_hour", Shape::number(limits::kLeastCost, kLarge), nullptr,
                      "With aws: what all machines together may cost an hour at most, in US "
                      "dollars, by AWS's price list: `up` and the head ask for nothing beyond. "
                      "Absent: no bound."),
                  "max_cost_per_hour: 50"),
          example(required(expands(key("provider", Shape::special("mapping", json::object()),
                                       nullptr, "Where the nodes come from."))),
                  "provider: {type: local}"),
          expands(key("auth", Shape::mapping(auth_table()), nullptr, "How to log in to nodes.")),
          example(
              key("available_node_types", Shape::mappings(node_type_table()), json::object(),
                  "The kinds of nodes there may be. An error with local and ssh, whose machines "
                  "exist and have none."),
              "available_node_types: {head: {node_config: {}}}"),
          example(key("head_node_type", Shape::text(), nullptr,
                      "Which of `available_node_types` the head is. Absent: Ray's default, where "
                      "there is a type of that name: `ray.head.default` with aws and azure, "
                      "`ray_head_default` with gcp, `head_node` with kubernetes. With slurm the "
                      "head is in allocations of such nodes, one after the other; absent: on the "
                      "login node. An error with local and ssh."),
                  "head_node_type: head"),
          example(expands(key("file_mounts", text_map(), json::object(),
                              "Files and folders to copy to all nodes: path there: path here.")),
                  "file_mounts: {~/data: ./data}"),
          key("cluster_synced_files", Shape::texts(), json::array(),
              "Paths on the head to copy to the other nodes."),
          key("file_mounts_sync_continuously", Shape::boolean(), false,
              "Nothing is copied as it happens: `dtrain sync up` does it."),
          example(key("rsync_exclude", Shape::texts(), json::array(), "Patterns not to copy."),
                  "rsync_exclude: [\"**/.git\"]"),
          example(key("rsync_filter", Shape::texts(), json::array(),
                      "Names of files that hold such patterns."),
                  "rsync_filter: [.gitignore]"),
          key("initialization_commands", Shape::texts(), json::array(),
              "Shell commands on each node, before all other commands."),
          key("setup_commands", Shape::texts(), json::array(),
              "Shell commands on each node; they come before the next two."),
          key("head_setup_commands", Shape::texts(), json::array(), "Shell commands on the head."),
          key("worker_setup_commands", Shape::texts(), json::array(),
              "Shell commands on the other nodes."),
          example(key("ready", Shape::mapping(ready_table()), nullptr,
                      "What must hold before a node counts as ready."),
                  "ready: {command: nvidia-smi -L, gpus: 8}"),
          example(key("down_when_idle", Shape::mapping(down_when_idle_table()), nullptr,
                      "With aws: the whole cluster goes down by itself when nothing has run for "
                      "so long, also while this machine is off. Absent: never."),
                  "down_when_idle: {minutes: 60, head: stop}"),
          example(
              key("retention", Shape::mapping(retention_table()), nullptr,
                  "When jobs that have ended are forgotten. Absent: never, but by `dtrain rm`."),
              "retention: {days: 30, size: 50GiB}"),
          example(key("content_cache_size", amount_of_bytes(), nullptr,
                      "How much of jobs' files that no job needs now the head and each node keep "
                      "for the next one. Absent: 10 % of the disk there."),
                  "content_cache_size: 20GiB"),
          example(key("head_node", Shape::open(), nullptr,
                      "Ray's old form: `node_config` of the head, `resources` within. An "
                      "error with local and ssh."),
                  "head_node: {InstanceType: m5.large}"),
          example(key("worker_nodes", Shape::open(), nullptr,
                      "Ray's old form: the same for all others. An error with local and ssh."),
                  "worker_nodes: {InstanceType: m5.large}"),
          example(
              key("min_workers", nodes(), nullptr, "Ray's old form: how many there are at least."),
              "min_workers: 2"),
          obsolete(key("initial_workers", nodes(), nullptr, "Of Ray's old form.")),
          obsolete(key("autoscaling_mode", Shape::choice({"default", "aggressive"}), nullptr,
                       "Of Ray's old form.")),
          obsolete(key("target_utilization_fraction", Shape::number(0, 1), nullptr,
                       "Of Ray's old form.")),
          obsolete(key("terminate_failed_nodes", Shape::boolean(), nullptr, "Of Ray's old form.")),
          obsolete(key("worker_default_node_type", Shape::text(), nullptr, "Of Ray's old form.")),
          ray_only(key("head_start_ray_commands", Shape::texts(), json::array(),
                       "How Ray starts itself on the head.")),
          ray_only(key("worker_start_ray_commands", Shape::texts(), json::array(),
                       "How Ray starts itself on the other nodes.")),
          ray_only(key("no_restart", Shape::boolean(), nullptr, "Set by `ray up --no-restart`.")),
          silent(key("metadata", Shape::open(), nullptr, "Anything; Ray looks at it as little.")),
          key("docker", Shape::mapping(docker_table()), nullptr,
              "Containers; not built yet: a warning if there is an image."),
      }};
  return table;
}

}  // namespace dtrain::spec
