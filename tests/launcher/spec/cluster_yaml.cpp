#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/launcher/spec/yaml_support.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::testing;

namespace {

const std::filesystem::path kRoot = DTRAIN_SOURCE_ROOT;

Read<ClusterSpec> golden(const std::string& name) {
  return read_cluster_yaml((kRoot / "tests/golden/spec" / name).string(), environment());
}

std::vector<std::string> messages(const std::vector<Warning>& warnings) {
  std::vector<std::string> out;
  for (const Warning& warning : warnings) {
    out.push_back(std::to_string(warning.location.line) + ":" +
                  std::to_string(warning.location.column) + " " + warning.message);
  }
  return out;
}

const NodeType& type(const ClusterSpec& spec, const std::string& name) {
  for (const NodeType& each : spec.node_types) {
    if (each.name == name) return each;
  }
  FAIL("no node type " << name);
  return spec.node_types.front();
}

}  // namespace

TEST_CASE("this machine") {
  const ClusterSpec spec = cluster("provider: {type: local}");
  CHECK(spec.cluster_name == "default");
  CHECK(spec.provider.kind == ProviderKind::local);
  CHECK(spec.promised_nodes() == 1);
  CHECK(spec.source == "/work/cluster.yaml");
  CHECK(cluster("provider: {type: local, nodes: 4}").promised_nodes() == 4);
  CHECK(cluster("provider: {type: local, nodes: 4}").max_workers == 3);
}

namespace {
std::vector<std::string> hosts_of(const ClusterSpec& spec) {
  std::vector<std::string> hosts;
  for (const HostSpec& host : spec.provider.hosts) hosts.push_back(host.host);
  return hosts;
}
}  // namespace

TEST_CASE("hosts with ports and users, and of IPv6") {
  const ClusterSpec spec = cluster(
      "provider: {type: ssh, hosts: ['fd00::1', '[fd00::2]:2200', '10.0.0.3:2201', 'me@box']}\n"
      "auth: {ssh_user: all}\n");
  CHECK(hosts_of(spec) == std::vector<std::string>{"fd00::1", "fd00::2", "10.0.0.3", "box"});
  const std::vector<HostSpec>& hosts = spec.provider.hosts;
  CHECK(!hosts[0].ssh_port);
  CHECK(hosts[0].ssh_user == "all");
  CHECK(hosts[0].node == NodeId("fd00--1"));
  CHECK(hosts[1].ssh_port == 2200);
  CHECK(hosts[2].ssh_port == 2201);
  CHECK(hosts[3].ssh_user == "me");
  CHECK(
      contains(cluster_problems("provider: {type: ssh, hosts: ['[fd00::2]:70000']}"), "[fd00::2]"));
}

TEST_CASE("Ray's local with hosts is ssh") {
  const ClusterSpec spec = cluster("provider: {type: local, head_ip: a, worker_ips: [b, c]}");
  CHECK(spec.provider.kind == ProviderKind::ssh);
  CHECK(hosts_of(spec) == std::vector<std::string>{"a", "b", "c"});
  CHECK(spec.max_workers == 2);
  CHECK(cluster("provider: {type: ssh, head_ip: a}").promised_nodes() == 1);
  CHECK(contains(cluster_problems("provider: {type: ssh}"), "provider.head_ip: is missing"));
  CHECK(contains(cluster_problems("provider: {type: local, head_ip: a, nodes: 2}"),
                 "provider.nodes: there are hosts"));
  CHECK(contains(cluster_problems("provider: {type: local, worker_ips: [a]}"),
                 "provider.worker_ips: there is no head_ip"));
  CHECK(contains(cluster_problems("provider: {type: local, coordinator_address: 'h:1'}"),
                 "provider.coordinator_address: Ray's coordinator does not exist here"));
}

TEST_CASE("our own list of hosts") {
  const ClusterSpec spec = cluster(
      "provider:\n"
      "  type: ssh\n"
      "  hosts:\n"
      "    - gpu-1\n"
      "    - {host: 10.0.0.7, node: big, ssh_port: 2222, ssh_user: me, ssh_proxy_jump: [bastion]}\n"
      "auth: {ssh_private_key: /k, ssh_proxy_command: nc %h %p}\n"
      "ready: {command: nvidia-smi -L, gpus: 8}\n"
      "retention: {days: 30, size: 50GiB}\n"
      "content_cache_size: 0\n");
  CHECK(spec.promised_nodes() == 2);
  const HostSpec& first = spec.provider.hosts.at(0);
  CHECK(first.node == NodeId("gpu-1"));
  CHECK(first.ssh_user.empty());
  CHECK(first.ssh_private_key == "/k");
  CHECK(first.ssh_proxy_command == "nc %h %p");
  const HostSpec& second = spec.provider.hosts.at(1);
  CHECK(second.node == NodeId("big"));
  CHECK(second.host == "10.0.0.7");
  CHECK(second.ssh_port == 2222);
  CHECK(second.ssh_user == "me");
  CHECK(second.ssh_private_key == "/k");
  CHECK(second.ssh_proxy_command.empty());  // it has a way of its own
  CHECK(second.ssh_proxy_jump == std::vector<std::string>{"bastion"});
  CHECK(spec.ready.command == "nvidia-smi -L");
  CHECK(spec.ready.gpus == 8);
  CHECK(spec.storage.retention_days == 30);
  CHECK(spec.storage.retention_size == std::uint64_t{50} << 30);
  CHECK(spec.storage.content_cache_size == 0);
  CHECK(storage_spec_from_json(to_json(spec.storage)) == spec.storage);
  CHECK(storage_spec_from_json(nlohmann::json::object()) == StorageSpec{});
  CHECK_THROWS_AS(storage_spec_from_json({{"retention", {{"days", 0}}}}), Error);
  CHECK(contains(cluster_problems("provider: {type: ssh, hosts: []}"), "provider.hosts: is empty"));
  CHECK(contains(cluster_problems("provider: {type: ssh, hosts: [a], head_ip: a}"),
                 "provider.head_ip: hosts says all that it says"));
  CHECK(contains(cluster_problems("provider: {type: ssh, hosts: [a, {node: b}]}"),
                 "provider.hosts[1].host: is missing"));
  CHECK(contains(cluster_problems("provider: {type: ssh, hosts: [a, {host: '-x'}]}"),
                 "provider.hosts[1].host"));
  CHECK(contains(cluster_problems("provider: {type: ssh, head_ip: a, worker_ips: [b, '-x']}"),
                 "provider.worker_ips[1]"));
  CHECK(cluster("provider: {type: local, head_ip: in, external_head_ip: out}")
            .provider.hosts.at(0)
            .address == "in");
}

TEST_CASE("max_workers wins over the list of hosts") {
  const auto read =
      parse_cluster_yaml("max_workers: 1\nprovider: {type: ssh, head_ip: a, worker_ips: [b, c, d]}",
                         "c.yaml", environment());
  CHECK(read.spec.promised_nodes() == 2);
  CHECK(messages(read.warnings) ==
        std::vector<std::string>{"1:14 max_workers: is 1: the last 2 of the workers are left out"});
}

TEST_CASE("rules of a security group that no machine is in have no effect") {
  const auto said = [](const std::string& other) {
    return messages(
        parse_cluster_yaml("provider: {type: aws, security_group: {IpPermissions: []}}\n"
                           "head_node: {InstanceType: m5.large, SecurityGroupIds: [sg-1]}\n"
                           "worker_nodes: {InstanceType: m5.large" +
                               other + "}\n",
                           "c.yaml", environment())
            .warnings);
  };
  CHECK(said(", SecurityGroupIds: [sg-2]") ==
        std::vector<std::string>{"1:40 provider.security_group.IpPermissions: has no effect: each "
                                 "node type has SecurityGroupIds of its own"});
  CHECK(said("").empty());
}

TEST_CASE("the keys of our own in provider") {
  const ClusterSpec spec = cluster(
      "provider: {type: local, root: /data, head_address: 10.0.0.1, head_port: 46500,"
      " use_internal_ips: yes, cache_stopped_nodes: Off}");
  CHECK(spec.provider.root == "/data");
  CHECK(spec.provider.head_address == "10.0.0.1");
  CHECK(spec.provider.head_port == 46500);
  CHECK(spec.provider.use_internal_ips);
  CHECK_FALSE(spec.provider.cache_stopped_nodes);
}

TEST_CASE("variables are replaced in provider, auth and the local sides of file_mounts") {
  const auto env = environment({{"N", "4"}, {"P", "123"}, {"U", "me"}, {"D", "/d"}});
  const ClusterSpec local = cluster(
      "provider:\n  type: local\n  nodes: ${N}\n"
      "auth: {ssh_user: '${U}', ssh_private_key: '${D}/k'}\n"
      "file_mounts: {'/x${D}': '${D}/y'}\nsetup_commands: ['echo ${D} $$']\n",
      env);
  CHECK(local.provider.local_nodes == 4);
  CHECK(local.auth.ssh_user == "me");
  CHECK(local.auth.ssh_private_key == "/d/k");
  CHECK(local.file_mounts.at(0).remote == "/x${D}");
  CHECK(local.file_mounts.at(0).local == "/d/y");
  CHECK(local.setup_commands == std::vector<std::string>{"echo ${D} $$"});
  const ClusterSpec gcp =
      cluster("provider:\n  type: gcp\n  project_id: ${P}\n  gcp_credentials: {type: '${U}'}", env);
  CHECK(gcp.provider.other["project_id"] == "123");
  CHECK(gcp.provider.other["gcp_credentials"]["type"] == "me");
  CHECK(contains(cluster_problems("provider:\n  type: local\n  nodes: ${NOPE}"),
                 "3:10 provider.nodes: the environment variable NOPE is not set"));
  CHECK(contains(cluster_problems("provider:\n  type: local\n  nodes: ${P}x", env),
                 "provider.nodes: must be a whole number of 1 to 1000"));
}

TEST_CASE("paths of a cluster YAML are relative to it") {
  const ClusterSpec spec = cluster(
      "provider: {type: local}\nauth: {ssh_private_key: ../k, ssh_public_key: ~/p}\n"
      "file_mounts: {~/data: ./data/, /x: /y}\n");
  CHECK(spec.auth.ssh_private_key == "/k");
  CHECK(spec.auth.ssh_public_key == "/home/me/p");
  CHECK(spec.file_mounts.at(0).remote == "~/data");
  CHECK(spec.file_mounts.at(0).local == "/work/data");
  CHECK(spec.local_paths.back().location.line == 3);
}

TEST_CASE("Ray's example for machines on premises") {
  const auto [spec, warnings] = golden("ray-local.yaml");
  CHECK(spec.provider.kind == ProviderKind::ssh);
  CHECK(hosts_of(spec) == std::vector<std::string>{"192.0.2.1", "192.0.2.2", "host-3.example"});
  CHECK(spec.provider.hosts[2].ssh_user == spec.auth.ssh_user);
  CHECK(spec.promised_nodes() == 3);
  CHECK(spec.auth.ssh_private_key == "/home/me/.ssh/id_rsa");
  CHECK(spec.rsync_filter == std::vector<std::string>{".gitignore"});
  CHECK(spec.head_setup_commands == std::vector<std::string>{"echo all", "echo head"});
  CHECK(spec.worker_setup_commands == std::vector<std::string>{"echo all", "echo worker"});
  CHECK_FALSE(spec.file_mounts_sync_continuously);
  // An empty docker.image says nothing.
  CHECK(messages(warnings) ==
        std::vector<std::string>{
            "45:1 head_start_ray_commands: only makes sense for Ray; it has no effect here",
            "48:1 worker_start_ray_commands: only makes sense for Ray; it has no effect here"});
}

TEST_CASE("Ray's example for AWS") {
  const auto [spec, warnings] = golden("ray-aws.yaml");
  CHECK(spec.provider.kind == ProviderKind::aws);
  CHECK(spec.provider.other["region"] == "us-west-2");
  CHECK(spec.head_node_type == "ray.head.default");
  CHECK(spec.promised_nodes() == 2);
  const NodeType& worker = type(spec, "ray.worker.default");
  CHECK(worker.max_workers == 2);
  CHECK(worker.node_config["InstanceMarketOptions"]["MarketType"] == "spot");
  CHECK(type(spec, "ray.head.default").node_config["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] ==
        140);
  CHECK(contains(messages(warnings), "7:12 docker.image: containers are not built yet"));
  CHECK(warnings.size() == 3);
}

TEST_CASE("Ray's example for Google Cloud") {
  const auto [spec, warnings] = golden("ray-gcp.yaml");
  CHECK(spec.provider.kind == ProviderKind::gcp);
  CHECK_FALSE(spec.provider.other.contains("project_id"));
  CHECK(type(spec, "ray_worker_small").node_config["scheduling"][0]["preemptible"] == true);
  CHECK(type(spec, "ray_head_default").resources.at("CPU") == 2);
  CHECK(warnings.size() == 3);
}

TEST_CASE("Ray's example for Azure") {
  const auto [spec, warnings] = golden("ray-azure.yaml");
  CHECK(spec.provider.kind == ProviderKind::azure);
  CHECK(spec.provider.other["location"] == "westus2");
  CHECK(spec.file_mounts.at(0).local == "/home/me/.ssh/id_rsa.pub");
  CHECK(type(spec, "ray.worker.default")
            .node_config["azure_arm_parameters"]["billingProfile"]["maxPrice"] == -1);
  CHECK(spec.initialization_commands.size() == 2);
  CHECK(type(spec, "ray.head.default").initialization_commands.size() == 2);
  CHECK(warnings.size() == 3);
}

TEST_CASE("Ray's old form becomes two node types") {
  const auto [spec, warnings] = golden("ray-old-form.yaml");
  CHECK(spec.head_node_type == "ray-legacy-head-node-type");
  const NodeType& head = type(spec, "ray-legacy-head-node-type");
  CHECK(head.max_workers == 0);
  CHECK(head.resources.at("memory") == 8589934592.0);
  CHECK_FALSE(head.node_config.contains("resources"));
  const NodeType& worker = type(spec, "ray-legacy-worker-node-type");
  CHECK(worker.min_workers == 1);
  CHECK(worker.max_workers == 3);
  CHECK(worker.node_config["InstanceType"] == "p3.2xlarge");
  CHECK(spec.promised_nodes() == 2);
  CHECK(contains(messages(warnings), "4:1 initial_workers: has no effect; Ray itself"));
  CHECK(warnings.size() == 3);
}

TEST_CASE("a problem of the old form is named as it stands in the file") {
  CHECK(contains(cluster_problems("provider: {type: aws}\nhead_node:\n  resources: {CPU: -1}\n"),
                 "3:20 head_node.resources.CPU: must be 0 to"));
  CHECK(contains(cluster_problems("provider: {type: aws}\nhead_node:\n  resources: {CPU: x}\n"),
                 "3:20 head_node.resources.CPU: must be a number, not a text"));
}

TEST_CASE("clouds have Ray's defaults") {
  const ClusterSpec aws = cluster("provider: {type: aws}");
  CHECK(aws.provider.other["region"] == "us-west-2");
  CHECK(!aws.provider.other.contains("availability_zone"));
  CHECK(aws.head_node_type == "ray.head.default");
  CHECK(aws.promised_nodes() == 1);
  CHECK(cluster("provider: {type: gcp}").provider.other["availability_zone"] == "us-west1-a");
  CHECK(cluster("provider: {type: azure}").provider.other["resource_group"] == "ray-cluster");
  CHECK(contains(cluster_problems("provider: {type: slurm}"), "available_node_types: is missing"));
}

TEST_CASE("node types") {
  const ClusterSpec spec = cluster(R"(
provider: {type: aws}
initialization_commands: [a]
worker_setup_commands: [w]
head_node_type: h
available_node_types:
  h: {node_config: {InstanceType: m5.large}}
  g:
    node_config: {InstanceType: g5.xlarge}
    resources: {GPU: 8, memory: 1GiB, special: 3}
    labels: {zone: a}
    initialization_commands: [b]
    worker_setup_commands: []
)");
  CHECK(type(spec, "h").initialization_commands == std::vector<std::string>{"a"});
  CHECK_FALSE(type(spec, "h").worker_setup_commands);
  CHECK(type(spec, "g").initialization_commands == std::vector<std::string>{"b"});
  CHECK(type(spec, "g").worker_setup_commands == std::vector<std::string>{});
  CHECK(type(spec, "g").resources.at("memory") == 1073741824.0);
  CHECK(type(spec, "g").labels.at("zone") == "a");
  const std::string start = "provider: {type: aws}\navailable_node_types:\n";
  CHECK(contains(cluster_problems(start + "  a: {}"), "head_node_type: is missing"));
  CHECK(contains(cluster_problems(start + "  a: {}\nhead_node_type: b"),
                 "4:17 head_node_type: 'b' is not one of"));
  CHECK(contains(cluster_problems(start + "  a: {min_worker: 2}\nhead_node_type: a"),
                 "3:7 available_node_types.a.min_worker: no such key in a node type [did you mean "
                 "min_workers?]"));
  CHECK(contains(cluster_problems(start + "  a b: {}\nhead_node_type: a b"), "is no name"));
  CHECK(contains(cluster_problems("provider: {type: local}\navailable_node_types: {a: {}}"),
                 "is not for provider local"));
}

TEST_CASE("unknown keys name their place and the nearest known key") {
  CHECK(cluster_problems("cluster_nam: x\nprovider: {type: local}") ==
        std::vector<std::string>{
            "1:1 cluster_nam: no such key in a cluster YAML [did you mean cluster_name?]"});
  CHECK(cluster_problems("provider: {type: local, region: x}") ==
        std::vector<std::string>{"1:25 provider.region: no such key in provider with type local "
                                 "[it belongs to provider aws, gcp]"});
  CHECK(contains(cluster_problems("provider: {type: local}\nhead_ip: x"),
                 "head_ip: no such key in a cluster YAML [it belongs under provider]"));
  CHECK(contains(cluster_problems("provider: {type: local}\nssh_user: x"),
                 "[it belongs under auth]"));
  CHECK(contains(cluster_problems("provider: {type: local}\ncommand: x"), "dtrain submit"));
  CHECK(contains(cluster_problems("provider: {type: local}\ndocker: {imag: x}"),
                 "2:10 docker.imag: no such key in docker [did you mean image?]"));
  CHECK(contains(cluster_problems("provider: {type: lokal}"),
                 "1:18 provider.type: 'lokal' is not a provider here; there are: local, ssh, aws, "
                 "gcp, azure, kubernetes, slurm [did you mean local?]"));
  CHECK(contains(cluster_problems("cluster_name: x"), "provider: is missing"));
  CHECK(contains(cluster_problems("provider: local"), "provider: must be a mapping, not a text"));
  CHECK(contains(cluster_problems("provider: {}"), "provider.type: is missing"));
}

TEST_CASE("empty keys that only Ray has say nothing") {
  const auto read = parse_cluster_yaml(
      "provider: {type: local}\nhead_start_ray_commands: []\ndocker: {image: ''}\nmetadata: {a: 1}",
      "c.yaml", environment());
  CHECK(read.warnings.empty());
}

TEST_CASE("anchors and merges") {
  const ClusterSpec spec = cluster(R"(
provider: {type: aws}
head_node_type: h
available_node_types:
  h: &base
    min_workers: 1
    max_workers: 1
    node_config: &config {InstanceType: m5.large, EbsOptimized: false}
  g:
    <<: *base
    max_workers: 2
    node_config: {<<: *config, EbsOptimized: true}
)");
  CHECK(type(spec, "g").min_workers == 1);
  CHECK(type(spec, "g").max_workers == 2);
  CHECK(type(spec, "g").node_config["InstanceType"] == "m5.large");
  CHECK(type(spec, "g").node_config["EbsOptimized"] == true);
}

TEST_CASE("the examples in configs/ are fine") {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "configs")) {
    if (entry.path().extension() != ".yaml") continue;
    CAPTURE(entry.path().string());
    const auto read = read_cluster_yaml(entry.path().string(), environment());
    // Ray's own start commands, on the head and on the workers, give a warning each.
    const bool of_ray = entry.path().filename().string().starts_with("ray-");
    CHECK(read.warnings.size() == (of_ray ? 2U : 0U));
    CHECK(looks_like_cluster_yaml(entry.path().string()));
    // Whoever puts hosts of theirs in has none of our folders.
    for (const FileMount& mount : read.spec.file_mounts) {
      CAPTURE(mount.local);
      CHECK(std::filesystem::exists(mount.local));
    }
    ++count;
  }
  CHECK(count >= 8);
}

TEST_CASE("files that cannot be read, and files of the other kind") {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder / name) << text;
    return (folder / name).string();
  };
  CHECK_THROWS_AS(read_cluster_yaml((folder / "none").string(), environment()), Error);
  CHECK_THROWS_AS(looks_like_cluster_yaml((folder / "none").string()), Error);
  CHECK_THROWS_AS(read_job_yaml(folder.path().string(), environment()), Error);
  CHECK_FALSE(looks_like_cluster_yaml(write("job.yaml", "command: x")));
  CHECK_FALSE(looks_like_cluster_yaml(write("binary", std::string("\x7f"
                                                                  "ELF\0",
                                                                  5))));
  CHECK(looks_like_cluster_yaml(write("c.yaml", "provider: {type: x}")));
  try {
    read_job_yaml("/dev/zero", environment());
    FAIL("accepted");
  } catch (const SpecError& error) {
    CHECK(std::string(error.what()).find("larger than 4.0 MiB") != std::string::npos);
  }
  const JobSpec job =
      read_job_yaml(write("j.yaml", "command: [a]\nworkdir: w"), environment()).spec;
  CHECK(job.workdir == (folder / "w").string());
}

TEST_CASE("a cluster that goes down by itself") {
  const std::string types =
      "provider: {type: aws}\nhead_node_type: h\navailable_node_types:\n"
      "  h: {node_config: {InstanceType: m5.large}}\n";
  CHECK_FALSE(cluster(types).down_when_idle.has_value());
  const ClusterSpec stops = cluster(types + "down_when_idle: {minutes: 1.5}\n");
  CHECK(stops.down_when_idle == DownWhenIdle{1.5, false});
  CHECK(cluster(types + "down_when_idle: {head: terminate}\n").down_when_idle ==
        DownWhenIdle{60, true});
  CHECK(cluster_problems(types + "down_when_idle: {minutes: 0}\n") ==
        std::vector<std::string>{
            "5:27 down_when_idle.minutes: must be a number of 0.01 to 1000000000, not 0 "
            "[for example: minutes: 60]"});
  CHECK(cluster_problems("provider: {type: local}\ndown_when_idle: {minutes: 5}\n") ==
        std::vector<std::string>{
            "2:1 down_when_idle: is for provider aws: one of local does not go down by itself"});
  const std::string spot =
      "provider: {type: aws}\nhead_node_type: h\navailable_node_types:\n"
      "  h: {node_config: {InstanceType: m5.large, InstanceMarketOptions: {MarketType: spot}}}\n";
  CHECK(cluster_problems(spot + "down_when_idle: {minutes: 5}\n") ==
        std::vector<std::string>{
            "5:1 down_when_idle: the head is a spot machine, which cannot be stopped "
            "[head: terminate takes it away with all that is on it]"});
  CHECK(cluster(spot + "down_when_idle: {head: terminate}\n").down_when_idle->terminate);
}
