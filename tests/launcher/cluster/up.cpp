#include <doctest/doctest.h>
#include <stdlib.h>

#include "launcher/cluster/head_place.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/cluster/up.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;

namespace {

ClusterSpec local(int nodes) {
  ClusterSpec spec;
  spec.cluster_name = "c";
  spec.provider.local_nodes = nodes;
  return spec;
}

ClusterState state_of(const ClusterSpec& spec) {
  ClusterState state;
  state.name = spec.cluster_name;
  state.id = ClusterId("c-abcdef");
  state.provider = to_string(spec.provider.kind);
  for (int i = 0; i < spec.promised_nodes(); ++i) {
    state.nodes.push_back({NodeId("node-" + std::to_string(i)), "127.0.0.1", "/x"});
  }
  state.head_root = "/x/head";
  state.spec = to_json(spec);
  state.prepared = true;
  return state;
}

}  // namespace

TEST_CASE("plan_up: what is there decides what is done") {
  const ClusterSpec spec = local(2);
  UpObserved seen;
  CHECK(plan_up(spec, seen).action == UpAction::build);

  seen.state = state_of(spec);
  seen.state->prepared = false;
  CHECK(plan_up(spec, seen).action == UpAction::build);

  seen.state->prepared = true;
  CHECK(plan_up(spec, seen).action == UpAction::start_watch);
  seen.watch_lives = true;
  CHECK(plan_up(spec, seen).action == UpAction::wait);
  seen.all_ready = true;
  CHECK(plan_up(spec, seen).action == UpAction::nothing);
  seen.replace = "its agents run another build";
  CHECK(plan_up(spec, seen).action == UpAction::replace);
  CHECK(plan_up(spec, seen).reason == seen.replace);
}

TEST_CASE("plan_up: another shape is refused with the reason") {
  UpObserved seen{state_of(local(2)), true, true};
  const UpPlan more = plan_up(local(4), seen);
  CHECK(more.action == UpAction::refuse);
  CHECK(more.reason == "it is up with 2 nodes, not 4");

  ClusterSpec other_port = local(2);
  other_port.provider.head_port = 46555;
  CHECK(plan_up(other_port, seen).action == UpAction::refuse);

  ClusterSpec commands = local(2);
  commands.max_workers = 9;  // of no consequence for what runs
  CHECK(plan_up(commands, seen).action == UpAction::nothing);
}

TEST_CASE("plan_up: what another provider has half made is refused too, not built anew") {
  UpObserved seen{state_of(local(2))};
  seen.state->provider = "aws";
  CHECK(plan_up(local(2), seen).action == UpAction::refuse);
  seen.state->prepared = false;
  const UpPlan plan = plan_up(local(2), seen);
  CHECK(plan.action == UpAction::refuse);
  CHECK(plan.reason == "it is up with provider aws");
}

TEST_CASE("cluster.json: what is saved is what is read; damage names the file") {
  const testing::TemporaryFolder folder;
  ::setenv("XDG_STATE_HOME", folder.path().c_str(), 1);
  CHECK(!load_cluster("c"));
  ClusterState state = state_of(local(2));
  state.agent = "/a/dtrain-agent";
  Machine& made = state.nodes[1];
  made.id = "i-1";
  made.type = "gpu";
  made.launch = "abc";
  made.zone = "a";
  made.external_address = "192.0.2.1";
  save_cluster(state);
  const auto read = load_cluster("c");
  REQUIRE(read);
  CHECK(to_json(*read) == to_json(state));
  CHECK(read->nodes[1].id == "i-1");
  CHECK(read->nodes[1].type == "gpu");
  CHECK(read->nodes[1].launch == "abc");
  CHECK(read->nodes[1].zone == "a");
  CHECK(read->nodes[1].external_address == "192.0.2.1");
  CHECK(read->nodes[1].cluster == state.id);
  CHECK(read->nodes[0].external_address.empty());

  write_file_atomic(paths::cluster_state("c") / "cluster.json", "{\"name\": 3}");
  try {
    load_cluster("c");
    FAIL("a damaged file was read");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("cluster.json") != std::string::npos);
    CHECK(error.hint().find("dtrain down -c c") != std::string::npos);
  }
}

TEST_CASE("the chosen cluster: the option, then DTRAIN_CLUSTER, then the current one") {
  const testing::TemporaryFolder folder;
  ::setenv("XDG_STATE_HOME", folder.path().c_str(), 1);
  ::unsetenv("DTRAIN_CLUSTER");
  CHECK_THROWS_AS(choose_cluster(""), Error);
  set_current_cluster("one");
  CHECK(choose_cluster("") == "one");
  ::setenv("DTRAIN_CLUSTER", "two", 1);
  CHECK(choose_cluster("") == "two");
  CHECK(choose_cluster("three") == "three");
  CHECK_THROWS_AS(choose_cluster("../x"), Error);
  ::unsetenv("DTRAIN_CLUSTER");
  clear_current_cluster("two");
  CHECK(choose_cluster("") == "one");
  clear_current_cluster("one");
  CHECK(!current_cluster());
}

TEST_CASE("another place for the head is what leads to another machine, user or folder") {
  ClusterSpec was;
  was.cluster_name = "c";
  was.provider.kind = ProviderKind::ssh;
  for (const char* name : {"h0", "h1"}) {
    HostSpec& host = was.provider.hosts.emplace_back();
    host.node = NodeId(name);
    host.host = name;
  }
  ClusterSpec now = was;
  CHECK(another_place(was, now).empty());
  now.provider.hosts.pop_back();
  now.provider.hosts[0].address = "10.0.0.1";
  now.provider.head_port = 7000;
  now.auth.ssh_private_key = "/key";
  CHECK(another_place(was, now).empty());
  now.provider.hosts[0].host = "h1";
  CHECK(another_place(was, now) == "the head was h0, and is h1");
  now.provider.hosts[0].ssh_user = "me";
  CHECK(another_place(was, now) == "ssh_user was not given, and is me");
  now.provider.root = "/scratch";
  CHECK(another_place(was, now) == "provider.root was not given, and is /scratch");
  was.provider.root = "/scratch/./";
  CHECK(another_place(was, now) == "ssh_user was not given, and is me");

  was.provider.hosts.clear();
  was.provider.kind = ProviderKind::slurm;
  now = was;
  now.auth.ssh_user = "me";  // nobody logs in
  CHECK(another_place(was, now).empty());
  now.provider.other["login_node"] = "login1";
  CHECK(another_place(was, now).empty());  // it was typed there before
  was.provider.other["login_node"] = "login2";
  CHECK(another_place(was, now) == "ssh_user was ubuntu, and is me");
  was.head_node_type = "head";
  CHECK(another_place(was, now) == "head_node_type was head, and is not given");
}
