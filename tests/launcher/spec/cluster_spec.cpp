#include "launcher/spec/cluster_spec.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "launcher/spec/host_fields.hpp"

using namespace dtrain;

namespace {

ClusterSpec ssh() {
  ClusterSpec spec;
  spec.provider.kind = ProviderKind::ssh;
  for (const char* host : {"10.0.0.1", "10.0.0.2", "gpu-3.example"}) {
    HostSpec one;
    one.host = host;
    one.node = node_of_host(host);
    spec.provider.hosts.push_back(one);
  }
  return spec;
}

ClusterSpec aws() {
  ClusterSpec spec;
  spec.provider.kind = ProviderKind::aws;
  spec.max_workers = 10;
  NodeType head;
  head.name = "head";
  NodeType gpu;
  gpu.name = "gpu";
  gpu.min_workers = 4;
  spec.node_types = {head, gpu};
  spec.head_node_type = "head";
  return spec;
}

template <typename Change>
std::vector<std::string> cluster_problems_after(ClusterSpec spec, Change change) {
  change(spec);
  std::vector<std::string> messages;
  for (const Error& error : validate(spec)) messages.push_back(error.message());
  return messages;
}

}  // namespace

TEST_CASE("a cluster promises its head and the least of its workers") {
  ClusterSpec local;
  CHECK(local.promised_nodes() == 1);
  local.provider.local_nodes = 4;
  CHECK(local.promised_nodes() == 4);
  CHECK(ssh().promised_nodes() == 3);
  CHECK(aws().promised_nodes() == 5);
  ClusterSpec capped = aws();
  capped.max_workers = 2;
  CHECK(capped.promised_nodes() == 3);
  ClusterSpec head_type = aws();
  head_type.node_types[0].min_workers = 3;
  CHECK(head_type.promised_nodes() == 5);  // the head's type has no workers unless it says so
  head_type.node_types[0].max_workers = 3;
  CHECK(head_type.promised_nodes() == 8);
  CHECK(local.promised()[3] == PromisedNode{NodeId("node-3"), ""});
  CHECK(ssh().promised()[2] == PromisedNode{NodeId("gpu-3.example"), ""});
  CHECK(capped.promised() == std::vector<PromisedNode>{{{}, "head"}, {{}, "gpu"}, {{}, "gpu"}});
}

TEST_CASE("clusters that are fine") {
  CHECK(validate(ClusterSpec{}).empty());
  CHECK(validate(ssh()).empty());
  CHECK(validate(aws()).empty());
}

TEST_CASE("hosts and users come from an allow-list") {
  for (const char* host : {"-oProxyCommand=x", "a b", "$(x)", "a;b", "a\nb", "", "a/b", "u@h"}) {
    CAPTURE(host);
    CHECK(cluster_problems_after(ssh(), [&](ClusterSpec& s) {
            s.provider.hosts[0].host = host;
          }).size() == 1);
    CHECK(cluster_problems_after(ssh(), [&](ClusterSpec& s) {
            s.provider.hosts[1].ssh_proxy_jump = {host};
          }).size() == (std::string(host) == "u@h" ? 0 : 1));
  }
  CHECK(cluster_problems_after(ssh(), [](ClusterSpec& s) {
          s.provider.hosts[0].host = "fe80::1%eth0";
        }).empty());
  for (const char* user : {"-l", "a b", "$(x)", "a;b", ""}) {
    CAPTURE(user);
    CHECK(cluster_problems_after(aws(), [&](ClusterSpec& s) { s.auth.ssh_user = user; }).size() ==
          1);
    if (*user == '\0') continue;  // for a host: whoever ssh logs in as
    CHECK(cluster_problems_after(ssh(), [&](ClusterSpec& s) {
            s.provider.hosts[2].ssh_user = user;
          }).size() == 1);
  }
  CHECK(cluster_problems_after(ssh(), [](ClusterSpec& s) { s.cluster_name = "a/b"; }).size() == 1);
}

TEST_CASE("a host cannot be there twice") {
  CHECK(cluster_problems_after(ssh(), [](ClusterSpec& s) {
          s.provider.hosts[2].host = "10.0.0.2";
        }) == std::vector<std::string>{"provider.hosts[2]: '10.0.0.2' is there twice"});
  CHECK(cluster_problems_after(ssh(), [](ClusterSpec& s) {
          s.provider.hosts[2].host = "10.0.0.1";
        }) == std::vector<std::string>{"provider.hosts[2]: '10.0.0.1' is the head too"});
  CHECK(cluster_problems_after(ssh(), [](ClusterSpec& s) {
          s.provider.hosts[2].node = NodeId("10.0.0.2");
        }) == std::vector<std::string>{"provider.hosts[2].node: '10.0.0.2' is there twice"});
}

TEST_CASE("node types") {
  CHECK(cluster_problems_after(aws(), [](ClusterSpec& s) { s.head_node_type = "hed"; }) ==
        std::vector<std::string>{"head_node_type: 'hed' is not one of available_node_types"});
  CHECK(cluster_problems_after(aws(), [](ClusterSpec& s) { s.node_types.clear(); }).size() == 1);
  CHECK(cluster_problems_after(aws(), [](ClusterSpec& s) { s.node_types[1].max_workers = 1; }) ==
        std::vector<std::string>{
            "available_node_types.gpu.min_workers: is 4, more than max_workers, which is 1"});
  CHECK(cluster_problems_after(aws(), [](ClusterSpec& s) {
          s.node_types[1].resources["CPU"] = -1;
        }).size() == 1);
  CHECK(cluster_problems_after(aws(), [](ClusterSpec& s) {
          s.node_types[1].resources["CPU"] = NAN;
        }).size() == 1);
}

TEST_CASE("paths of a cluster") {
  CHECK(cluster_problems_after(ssh(), [](ClusterSpec& s) { s.provider.root = "data"; }).size() ==
        1);
  CHECK(cluster_problems_after(ssh(), [](ClusterSpec& s) { s.provider.root = "~/data"; }).empty());
  CHECK(cluster_problems_after(ssh(), [](ClusterSpec& s) {
          s.file_mounts = {FileMount{"data", "/x"}};
        }).size() == 1);
  CHECK(cluster_problems_after(ssh(), [](ClusterSpec& s) {
          s.file_mounts = {FileMount{"/data", "x"}};
        }).size() == 1);
  CHECK(cluster_problems_after(ssh(), [](ClusterSpec& s) {
          s.setup_commands = {"a", std::string(1, '\0')};
        }) == std::vector<std::string>{"setup_commands[1]: contains a NUL character"});
}

TEST_CASE("the JSON of equal clusters is equal, of different ones it is not") {
  CHECK(to_json(ssh()).dump() == to_json(ssh()).dump());
  ClusterSpec other = ssh();
  other.provider.hosts.pop_back();
  CHECK(to_json(other) != to_json(ssh()));
  other = ssh();
  other.setup_commands = {"echo"};
  CHECK(to_json(other) != to_json(ssh()));
  CHECK(to_json(aws())["available_node_types"]["gpu"]["min_workers"] == 4);
}

TEST_CASE("hosts to go through") {
  const auto all = parse_jump("me@bastion:2222");
  REQUIRE(all);
  CHECK(all->user == "me");
  CHECK(all->host == "bastion");
  CHECK(all->port == 2222);
  const auto plain = parse_jump("10.0.0.1");
  REQUIRE(plain);
  CHECK(plain->user.empty());
  CHECK(plain->host == "10.0.0.1");
  CHECK(!plain->port);
  const auto six = parse_jump("[fe80::1]:22");
  REQUIRE(six);
  CHECK(six->host == "fe80::1");
  CHECK(six->port == 22);
  const auto bare_six = parse_jump("fe80::1");
  REQUIRE(bare_six);
  CHECK(bare_six->host == "fe80::1");
  for (const char* wrong :
       {"", "@h", "h:", "h:0", "h:65536", "h:22x", "[h", "[h]22", "-h", "a b"}) {
    CAPTURE(wrong);
    CHECK(!parse_jump(wrong));
  }
}

TEST_CASE("a host's JSON and back") {
  HostSpec host;
  host.node = NodeId("gpu-1");
  host.host = "gpu1.lab";
  host.address = "10.0.0.1";
  host.ssh_port = 2222;
  host.ssh_user = "me";
  host.ssh_private_key = "/k";
  host.ssh_proxy_jump = {"a", "b"};
  HostSpec back;
  wire::read(wire::written(host), back);
  CHECK(back == host);
  CHECK_THROWS_AS(wire::read(nlohmann::json::object(), back), Error);
}

TEST_CASE("a node's name is made of its host's") {
  CHECK(node_of_host("gpu-1.lab") == NodeId("gpu-1.lab"));
  CHECK(node_of_host("fe80::1%eth0") == NodeId("fe80--1-eth0"));
  CHECK(node_of_host("::1") == NodeId("1"));
}

TEST_CASE("a cluster's spec comes back whole from its JSON") {
  ClusterSpec spec = aws();
  spec.cluster_name = "c";
  spec.upscaling_speed = 2;
  spec.idle_timeout_minutes = 7;
  spec.max_cost_per_hour = 20.5;
  spec.down_when_idle = {60, true};
  spec.provider.root = "~/there";
  spec.provider.head_address = "10.0.0.9";
  spec.provider.head_port = 46500;
  spec.provider.use_internal_ips = true;
  spec.provider.cache_stopped_nodes = true;
  spec.provider.other = {{"region", "eu-west-1"}, {"login_node", "hpc"}};
  spec.auth = {"me", 2222, "/keys/a", "/keys/a.pub", "nc %h %p", {"you@bastion"}};
  NodeType& gpu = spec.node_types[1];
  gpu.node_config = {{"InstanceType", "p5"}};
  gpu.resources = {{"GPU", 8}};
  gpu.labels = {{"zone", "a"}};
  gpu.max_workers = 6;
  gpu.idle_timeout_s = 30;
  gpu.priority = 3;
  gpu.fallback_instance_types = {"p4d"};
  gpu.on_demand_fallback = true;
  gpu.placement_group = "cluster";
  gpu.efa = true;
  gpu.initialization_commands = {"true"};
  gpu.worker_setup_commands = {{"make"}};
  spec.file_mounts = {{"~/data", "/data"}};
  spec.cluster_synced_files = {"~/x"};
  spec.file_mounts_sync_continuously = true;
  spec.rsync_exclude = {"*.o"};
  spec.rsync_filter = {".gitignore"};
  spec.initialization_commands = {"a"};
  spec.setup_commands = {"b"};
  spec.head_setup_commands = {"c"};
  spec.worker_setup_commands = {"d"};
  spec.ready = {"nvidia-smi", 8, std::chrono::seconds(5)};
  spec.storage.retention_days = 3;
  spec.storage.content_cache_size = 1 << 20;
  ClusterSpec local;
  local.provider.local_nodes = 3;
  for (const ClusterSpec& each : {spec, ssh(), local, ClusterSpec()}) {
    CHECK(to_json(cluster_spec_from_json(to_json(each))) == to_json(each));
  }
  // What a `down` from notes needs, also should neither side of the JSON have it.
  const ClusterSpec back = cluster_spec_from_json(to_json(spec));
  CHECK(back.provider.other == spec.provider.other);
  CHECK(back.provider.root == spec.provider.root);
  CHECK(back.provider.use_internal_ips);
  CHECK(back.auth.ssh_user == spec.auth.ssh_user);
  CHECK(back.auth.ssh_proxy_jump == spec.auth.ssh_proxy_jump);
  REQUIRE(back.node_types.size() == spec.node_types.size());
  CHECK(back.node_types.front().name == "gpu");  // by name
  CHECK(back.node_types.front().node_config == gpu.node_config);
  CHECK(back.head_node_type == spec.head_node_type);
  CHECK_THROWS_AS(cluster_spec_from_json({{"provider", {{"type", "moon"}}}}), Error);
  CHECK_THROWS_AS(cluster_spec_from_json({{"max_workers", "two"}}), Error);
}
