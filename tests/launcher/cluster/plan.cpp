#include "launcher/cluster/plan.hpp"

#include <doctest/doctest.h>
#include <time.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "launcher/cluster/known_nodes.hpp"
#include "launcher/provider/provider.hpp"

using namespace dtrain;

namespace {

ClusterSpec cloud(int workers) {
  ClusterSpec spec;
  spec.cluster_name = "c";
  spec.provider.kind = ProviderKind::aws;
  spec.provider.other = {{"region", "r"}};
  spec.max_workers = 10000;
  NodeType head;
  head.name = "head";
  NodeType gpu;
  gpu.name = "gpu";
  gpu.node_config = {{"image", "one"}};
  gpu.min_workers = workers;
  spec.node_types = {head, gpu};
  spec.head_node_type = "head";
  return spec;
}

// A machine as the plan of `cloud` would have made it.
Machine machine(const char* node, const char* id, const char* cluster = "c-a") {
  Machine made;
  made.node = NodeId(node);
  made.id = id;
  made.head = made.node == NodeId("node-0");
  made.type = made.head ? "head" : "gpu";
  made.launch = launch_hash(cloud(1), made.type);
  made.cluster = ClusterId(cluster);
  made.created = std::chrono::system_clock::time_point(std::chrono::seconds(std::stoi(id)));
  return made;
}

Machine with(Machine machine, MachineState state, const char* reason = "") {
  machine.state = state;
  machine.reason = reason;
  return machine;
}

Machine host(const char* node) {
  Machine listed;
  listed.node = NodeId(node);
  return listed;
}

ClusterSpec hosts(const std::vector<const char*>& names) {
  ClusterSpec spec;
  spec.provider.kind = ProviderKind::ssh;
  for (const char* name : names) {
    HostSpec one;
    one.host = name;
    one.node = NodeId(name);
    spec.provider.hosts.push_back(one);
  }
  return spec;
}

using Head = KnownNode::Head;

// As this machine's notes have them.
std::vector<KnownNode> noted(const std::vector<Machine>& machines, Head head = Head::silent) {
  std::vector<KnownNode> nodes;
  for (const Machine& each : machines) nodes.push_back({each, true, false, head});
  return nodes;
}

// As the head alone has one.
KnownNode stranger(const char* node, Head head, bool joined = false) {
  return {host(node), false, joined, head};
}

// "keep node-1 1: in the cluster"
std::vector<std::string> lines(const ClusterPlan& plan) {
  std::vector<std::string> all;
  for (const NodePlan& each : plan.nodes) {
    const std::string& id = each.machine.id;
    all.push_back(std::string(to_string(each.action)) + " " + each.machine.node.str() +
                  (id.empty() ? "" : " " + id) + ": " + each.reason);
  }
  return all;
}

std::vector<std::string> decided(const ClusterSpec& spec, const SeenNodes& seen,
                                 bool replace = false) {
  const ClusterPlan plan = decide(wanted_nodes(spec), seen, replace);
  CHECK(plan.refused.empty());
  return lines(plan);
}

using Lines = std::vector<std::string>;
constexpr const char* kChanged = "made by another launch configuration";

}  // namespace

TEST_CASE("what the head has asked for takes the place of what is lost, and is nobody's here") {
  Machine joined = machine("gpu-1", "5");
  joined.joins = true;
  const Machine head = machine("node-0", "1");
  const Machine one = machine("node-1", "2");
  const Lines both{"keep node-0 1: not in the cluster yet",
                   "keep node-1 2: not in the cluster yet"};
  CHECK(decided(cloud(1), {{head, one, joined}, {}, {}}) == both);
  CHECK(decided(cloud(2), {{head, one, joined}, {}, {}}) == both);
  CHECK(decided(cloud(3), {{head, one, joined}, {}, {}}).back() ==
        "create node-2: there is none yet");
  // Without a head they are another's to give back.
  CHECK(decide(wanted_nodes(cloud(1)), {{joined}, {}, {}}, false)
            .refused.find("the head of c-a is gone") == 0);
}

TEST_CASE("what is wanted and not there is made, under names that nothing has") {
  CHECK(decided(cloud(2), {}) == Lines{"create node-0: there is none yet",
                                       "create node-1: there is none yet",
                                       "create node-2: there is none yet"});
  const Machine head = machine("node-0", "1");
  const Machine stops = with(machine("node-1", "2"), MachineState::stopping);
  const Machine gone = with(machine("node-2", "3"), MachineState::gone);
  SeenNodes seen{{head, stops, gone}, noted({head}), {}};
  CHECK(decided(cloud(2), seen) == Lines{"keep node-0 1: in the cluster",
                                         "create node-2: there is none yet",
                                         "create node-3: there is none yet"});
  seen.known = noted({head, machine("node-2", "3")}, Head::hears);
  CHECK(decided(cloud(1), seen) == Lines{"keep node-0 1: in the cluster",
                                         "create node-3: there is none yet",
                                         "release node-2 3: its machine is gone"});
  const ClusterPlan plan = decide(wanted_nodes(cloud(1)), {}, false);
  CHECK(plan.nodes[0].machine.head);
  CHECK(plan.nodes[0].machine.type == "head");
  CHECK(plan.nodes[1].machine.type == "gpu");
  CHECK(plan.nodes[1].machine.launch == launch_hash(cloud(1), "gpu"));
}

TEST_CASE("what is there is kept, what is on its way too; another laptop's notes are not needed") {
  const SeenNodes seen{
      {machine("node-0", "1"), with(machine("node-1", "2"), MachineState::pending, "Priority"),
       machine("node-2", "3")},
      {},
      {}};
  const ClusterPlan plan = decide(wanted_nodes(cloud(2)), seen, false);
  CHECK(plan.cluster == ClusterId("c-a"));
  CHECK(lines(plan) == Lines{"keep node-0 1: not in the cluster yet",
                             "keep node-2 3: not in the cluster yet",
                             "keep node-1 2: on its way: Priority"});
}

TEST_CASE("what is stopped is started, the head before all, and only where no other runs") {
  const Machine head = with(machine("node-0", "1"), MachineState::stopped);
  const Machine one = with(machine("node-1", "2"), MachineState::stopped);
  Machine joined = with(machine("gpu-1", "5"), MachineState::stopped);
  joined.joins = true;
  SeenNodes seen{{head, one, joined}, {}, {}};
  const ClusterPlan plan = decide(wanted_nodes(cloud(1)), seen, false);
  CHECK(plan.cluster == ClusterId("c-a"));
  CHECK(lines(plan) ==
        Lines{"start node-0 1: its machine is stopped", "start node-1 2: its machine is stopped"});
  CHECK(has_action(plan, NodeAction::start));
  // Those of the notes that are not listed can be asked about once the head runs.
  seen.known = noted({head, one, machine("node-2", "3")}, Head::unasked);
  const ClusterPlan two = decide(wanted_nodes(cloud(2)), seen, false);
  CHECK(lines(two) == Lines{"start node-0 1: its machine is stopped",
                            "start node-1 2: its machine is stopped",
                            "create node-3: there is none yet"});
  CHECK(two.warnings.empty());
  // One that runs is as good, and too many go.
  seen = {{machine("node-0", "1"), one, machine("node-2", "3")}, {}, {}};
  CHECK(decided(cloud(1), seen) == Lines{"keep node-0 1: not in the cluster yet",
                                         "keep node-2 3: not in the cluster yet",
                                         "release node-1 2: 1 of type gpu is wanted"});
  // One of another launch configuration is started as it is, unless such give way.
  Machine other = one;
  other.launch = "another";
  seen = {{machine("node-0", "1"), other}, {}, {}};
  CHECK(decide(wanted_nodes(cloud(1)), seen, false).nodes[1].action == NodeAction::start);
  CHECK(decide(wanted_nodes(cloud(1)), seen, false).nodes[1].stale);
  CHECK(decide(wanted_nodes(cloud(1)), seen, true).nodes[1].action == NodeAction::replace);
}

TEST_CASE("what waits and was asked for otherwise is asked for again") {
  Machine waiting = machine("head-node", "7");
  waiting.state = MachineState::pending;
  waiting.head = true;
  const std::vector<WantedNode> wanted{{waiting.node, "head", "hash", true}};
  CHECK(lines(decide(wanted, {{waiting}, {}, {}}, false)) == Lines{"keep head-node 7: on its way"});
  waiting.outdated = true;
  const ClusterPlan plan = decide(wanted, {{waiting}, {}, {}}, false);
  CHECK(lines(plan) == Lines{"create head-node: what waits was asked for otherwise"});
  CHECK(plan.cluster == ClusterId("c-a"));
  CHECK(plan.nodes[0].machine.type == "head");
}

TEST_CASE("what is too many goes: what is not running yet first, then the last") {
  const SeenNodes seen{{machine("node-0", "1"), with(machine("node-1", "2"), MachineState::pending),
                        machine("node-2", "3"), machine("node-10", "4")},
                       noted({machine("node-0", "1"), machine("node-2", "3")}),
                       {}};
  CHECK(decided(cloud(1), seen) == Lines{"keep node-0 1: in the cluster",
                                         "keep node-2 3: in the cluster",
                                         "release node-1 2: 1 of type gpu is wanted",
                                         "release node-10 4: 1 of type gpu is wanted"});
}

TEST_CASE("another image replaces nodes only when asked, and never the head") {
  ClusterSpec other = cloud(1);
  other.node_types[1].node_config["image"] = "two";
  const SeenNodes seen{{machine("node-0", "1"), machine("node-1", "2")}, {}, {}};
  const ClusterPlan kept = decide(wanted_nodes(other), seen, false);
  CHECK(lines(kept).back() ==
        std::string("keep node-1 2: ") + kChanged + "; up --replace makes it anew");
  CHECK(kept.nodes.back().stale);
  CHECK(decided(other, seen, true).back() == std::string("replace node-1 2: ") + kChanged);
  CHECK(!has_action(decide(wanted_nodes(cloud(1)), seen, true), NodeAction::replace));

  other.provider.other["region"] = "s";
  CHECK(decided(other, seen, true) == Lines{std::string("keep node-0 1: ") + kChanged +
                                                "; the head is made anew only by down and up",
                                            std::string("replace node-1 2: ") + kChanged});
  ClusterSpec larger = cloud(1);
  larger.node_types[0].name = larger.head_node_type = "large";
  CHECK(decide(wanted_nodes(larger), seen, true).nodes.front().stale);
}

TEST_CASE("files, setup and numbers are no launch configuration") {
  ClusterSpec other = cloud(7);
  other.setup_commands = {"make"};
  other.file_mounts = {{"~/a", "/a"}};
  other.node_types[1].worker_setup_commands = {{"make"}};
  other.node_types[1].resources["GPU"] = 8;
  other.provider.other["security_group"] = {{"IpPermissions", {{{"IpProtocol", "-1"}}}}};
  CHECK(launch_hash(other, "gpu") == launch_hash(cloud(1), "gpu"));
  CHECK(launch_hash(other, "gpu") != launch_hash(other, "head"));
  CHECK(launch_hash(other, "gpu").size() == 16);
  CHECK(launch_hash(other, "").empty());
}

TEST_CASE("of two that are the same node the first stays, whoever asks") {
  const SeenNodes seen{
      {machine("node-0", "1"), machine("node-1", "5"), machine("node-1", "3")}, {}, {"5"}};
  const Lines expected{"keep node-0 1: not in the cluster yet",
                       "keep node-1 3: not in the cluster yet",
                       "release node-1 5: there twice: 3 came first"};
  CHECK(decided(cloud(1), seen) == expected);
  CHECK(decided(cloud(1), {seen.there, {}, {"3"}}) == expected);
}

TEST_CASE("of two clusters of one name the first stays; who made the second gives it back") {
  SeenNodes seen{
      {machine("node-0", "1", "c-z"), machine("node-0", "2", "c-a"), machine("node-1", "3", "c-a")},
      {},
      {"2", "3"}};
  CHECK(decided(cloud(1), seen) ==
        Lines{"keep node-0 1: not in the cluster yet", "create node-2: there is none yet",
              "release node-0 2: another up made this cluster at the same time, and before",
              "release node-1 3: another up made this cluster at the same time, and before"});
  CHECK(decide(wanted_nodes(cloud(1)), seen, false).cluster == ClusterId("c-z"));

  seen.made = {"1"};  // the other one
  CHECK(decided(cloud(1), seen) ==
        Lines{"keep node-0 1: not in the cluster yet", "create node-2: there is none yet"});

  seen.made.clear();
  CHECK(decide(wanted_nodes(cloud(1)), seen, false).refused ==
        "there are two clusters of this name: c-z, whose head is 1, and c-a, whose head is 2");
}

TEST_CASE("workers whose head is gone are given back by down alone") {
  const SeenNodes seen{
      {with(machine("node-0", "1"), MachineState::gone), machine("node-1", "2")}, {}, {}};
  CHECK(decide(wanted_nodes(cloud(1)), seen, false).refused ==
        "the head of c-a is gone, and machines of it are there: dtrain down gives them back");
  // Stopped ones of the head's cost their disks.
  Machine cached = with(machine("gpu-1", "2"), MachineState::stopped);
  cached.joins = true;
  const SeenNodes disks{{with(machine("node-0", "1"), MachineState::gone), cached}, {}, {}};
  CHECK_FALSE(decide(wanted_nodes(cloud(1)), disks, false).refused.empty());
}

TEST_CASE("workers that this up has made stay where no head could be had") {
  const SeenNodes seen{{machine("node-1", "2")}, {}, {"2"}};
  CHECK(decided(cloud(1), seen) ==
        Lines{"create node-0: there is none yet", "keep node-1 2: not in the cluster yet"});
  CHECK(decide(wanted_nodes(cloud(1)), seen, false).refused.empty());
}

TEST_CASE("hosts: those of the YAML stay, others go, whether this machine knew them or the head") {
  SeenNodes seen{{host("a"), host("c")}, noted({host("a"), host("b")}), {}};
  const Lines expected{"keep a: in the cluster", "keep c: not in the cluster yet",
                       "release b: no longer in the YAML"};
  CHECK(decided(hosts({"a", "c"}), seen) == expected);
  // What only the head knows stays; one that joined by itself is nobody's news.
  seen.known.push_back(stranger("d", Head::hears));
  seen.known.push_back(stranger("e", Head::lost, true));
  const ClusterPlan plan = decide(wanted_nodes(hosts({"a", "c"})), seen, false);
  CHECK(lines(plan) == expected);
  REQUIRE(plan.warnings.size() == 1);
  CHECK(plan.warnings[0].find("d is in the cluster and not in this YAML; ") == 0);
}

TEST_CASE("a list that misses a machine takes nothing from the cluster while the head hears it") {
  const Machine head = machine("node-0", "1");
  const Machine missed = machine("node-1", "2");
  SeenNodes seen{{head}, noted({head, missed}, Head::hears), {}};
  CHECK(decided(cloud(1), seen) ==
        Lines{"keep node-0 1: in the cluster",
              "keep node-1 2: in the cluster, though the provider does not list its machine"});
  CHECK(decided(cloud(0), seen) ==
        Lines{"keep node-0 1: in the cluster", "release node-1 2: 0 of type gpu are wanted"});
  // The head's own machine too: what is there is no cluster without a head.
  seen.there = {missed};
  CHECK(decided(cloud(1), seen).front() ==
        "keep node-0 1: in the cluster, though the provider does not list its machine");
  seen.there = {head};
  for (const Head lost : {Head::lost, Head::silent}) {
    seen.known = noted({head, missed}, lost);
    CHECK(decided(cloud(1), seen) == Lines{"keep node-0 1: in the cluster",
                                           "create node-2: there is none yet",
                                           "release node-1 2: its machine is gone"});
  }
  // Without the head's word nobody says that it is gone.
  seen.known = noted({head, missed}, Head::unasked);
  CHECK(decided(cloud(1), seen) ==
        Lines{"keep node-0 1: in the cluster", "create node-2: there is none yet"});
  CHECK(
      decide(wanted_nodes(cloud(1)), seen, false).warnings ==
      Lines{"node-1 (2): the provider does not list its machine, and the head cannot be asked: it "
            "may be there still"});
  // The provider's word that it is gone is newer than the head's, which waits for it.
  seen = {{head, with(missed, MachineState::gone)}, noted({head, missed}, Head::hears), {}};
  CHECK(decided(cloud(0), seen).back() == "release node-1 2: its machine is gone");
  // Another has taken its name since.
  seen = {{head, machine("node-1", "7")}, noted({head, missed}, Head::hears), {}};
  CHECK(decided(cloud(1), seen) ==
        Lines{"keep node-0 1: in the cluster", "keep node-1 7: in the cluster"});
}

TEST_CASE("nodes that only the head knows are neither wanted nor released") {
  const Machine head = machine("node-0", "1");
  SeenNodes seen{{head}, noted({head}, Head::hears), {}};
  seen.known.push_back(stranger("node-1", Head::hears, true));
  seen.known.push_back(stranger("lab", Head::lost, true));
  CHECK(decided(cloud(1), seen) ==
        Lines{"keep node-0 1: in the cluster", "create node-2: there is none yet"});
  CHECK(decide(wanted_nodes(cloud(1)), seen, false).warnings.empty());

  seen.known = {stranger("node-0", Head::hears), stranger("node-1", Head::hears),
                stranger("node-2", Head::lost)};
  const ClusterPlan plan = decide(wanted_nodes(cloud(0)), seen, false);
  CHECK(lines(plan) ==
        Lines{"keep node-0 1: in the cluster", "release node-2: its machine is gone"});
  CHECK(plan.warnings == Lines{"node-1 is in the cluster, and the provider does not list its "
                               "machine: it stays"});
}

TEST_CASE("what the head says joins what the notes have") {
  const nlohmann::json status = {
      {"nodes",
       {{{"node", "node-0"}, {"state", "ready"}},
        {{"node", "node-1"}, {"state", "lost"}},
        {{"node", "node-2"}, {"state", "gone"}},
        {{"node", "mine"}, {"state", "draining"}, {"address", "10.0.0.9"}, {"joined", true}}}}};
  const auto known =
      known_nodes({machine("node-0", "1"), machine("node-1", "2"), machine("node-2", "3")}, status);
  REQUIRE(known.size() == 4);
  CHECK(known[0].head == Head::hears);
  CHECK(known[0].noted);
  CHECK(known[1].head == Head::lost);
  CHECK(known[2].head == Head::silent);
  CHECK(known[3].machine.address == "10.0.0.9");
  CHECK(known[3].joined);
  CHECK(!known[3].noted);
  CHECK(known_nodes({machine("node-0", "1")}, std::nullopt).front().head == Head::unasked);
}

namespace {

// The least processor time of three decisions on so many machines, half of which go.
std::chrono::nanoseconds time_of(int many) {
  SeenNodes seen;
  for (int i = 0; i < many; ++i) {
    const std::string node = "node-" + std::to_string(i);
    seen.there.push_back(machine(node.c_str(), std::to_string(i).c_str()));
    seen.there.back().created = {};
  }
  seen.known = noted(seen.there, Head::hears);
  const auto wanted = wanted_nodes(cloud(many / 2));
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  auto least = std::chrono::nanoseconds::max();
  for (int i = 0; i < 3; ++i) {
    const auto begin = now();
    const ClusterPlan plan = decide(wanted, seen, false);
    least = std::min(least, now() - begin);
    REQUIRE(plan.nodes.size() == static_cast<std::size_t>(many));
    CHECK(plan.nodes[many / 2].action == NodeAction::keep);
    CHECK(plan.nodes[many / 2 + 1].action == NodeAction::release);
  }
  return least;
}

}  // namespace

TEST_CASE("ten thousand machines that are made are decided on in one pass") {
  const auto part = time_of(2500);
  const auto whole = time_of(10000);
  CHECK(whole < 8 * part);  // in the square of them it is 16 times
  MESSAGE("decided in " << whole.count() / 1000000 << " ms");
}

TEST_CASE("this machine's nodes: as many as are wanted") {
  ClusterSpec spec;
  spec.provider.local_nodes = 2;
  CHECK(decided(spec, {{host("node-0")}, {}, {}}) ==
        Lines{"keep node-0: not in the cluster yet", "create node-1: there is none yet"});
}
