#include "launcher/provider/provider.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include "launcher/core/error.hpp"
#include "launcher/remote/transport.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;

TEST_CASE("every provider that a YAML may name is in the table, once") {
  for (const auto kind :
       {ProviderKind::local, ProviderKind::ssh, ProviderKind::aws, ProviderKind::gcp,
        ProviderKind::azure, ProviderKind::kubernetes, ProviderKind::slurm}) {
    int found = 0;
    for (const ProviderEntry& entry : providers()) {
      if (entry.kind != kind) continue;
      ++found;
      CHECK(std::string(entry.name) == to_string(kind));
    }
    CHECK(found == 1);
    CHECK(provider_named(to_string(kind))->kind == kind);
    CHECK(traits_of(kind).here == (kind == ProviderKind::local));
    CHECK(is_here(to_string(kind)) == traits_of(kind).here);
  }
}

TEST_CASE("a name that is no provider is none") {
  CHECK(provider_named("cloud") == nullptr);
  CHECK(!is_here(""));
}

TEST_CASE("a provider that is not built says so at its line") {
  const testing::TemporaryFolder folder;
  ClusterSpec spec;
  spec.provider.kind = ProviderKind::gcp;
  spec.provider.location = {"c.yaml", 4, 9};
  try {
    make_provider(spec, folder.path());
    FAIL("it was made");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "c.yaml:4:9: provider gcp is not built yet");
  }
}

namespace {

std::vector<MachineOutcome> create(Provider& provider, std::vector<NodeId> nodes) {
  std::vector<MachineOutcome> outcomes;
  Request request;
  request.nodes = std::move(nodes);
  provider.create({request}, [&](const MachineOutcome& each) { outcomes.push_back(each); });
  return outcomes;
}

std::vector<MachineOutcome> release(Provider& provider, const std::vector<Machine>& machines) {
  std::vector<MachineOutcome> outcomes;
  provider.release(machines, [&](const MachineOutcome& each) { outcomes.push_back(each); });
  return outcomes;
}

}  // namespace

TEST_CASE("local: nodes are folders; making and giving back can be repeated") {
  const testing::TemporaryFolder folder;
  const ClusterSpec spec;
  const auto provider = make_provider(spec, folder.path());
  CHECK(provider->list().empty());
  std::vector<NodeId> nodes;
  for (int i = 0; i < 11; ++i) nodes.emplace_back("node-" + std::to_string(i));
  for (int round = 0; round < 2; ++round) {
    for (const MachineOutcome& outcome : create(*provider, nodes)) CHECK(!outcome.error);
  }
  const std::vector<Machine> machines = provider->list();
  REQUIRE(machines.size() == 11);
  CHECK(machines[0].head);
  CHECK(machines[2].node.str() == "node-2");
  CHECK(machines[10].node.str() == "node-10");
  write_file_atomic(machines[0].root / "file", "x");
  for (int round = 0; round < 2; ++round) {
    for (const MachineOutcome& outcome : release(*provider, machines)) {
      CHECK(!outcome.error);
      CHECK(outcome.machine.state == MachineState::gone);
    }
  }
  CHECK(provider->list().empty());
}

TEST_CASE("local: one failure does not throw away the others") {
  const testing::TemporaryFolder folder;
  const ClusterSpec spec;
  const auto provider = make_provider(spec, folder.path());
  make_folders(folder / "nodes");
  write_file_atomic(folder.path() / "nodes" / "node-0", "a file where a folder should be");
  const auto outcomes = create(*provider, {NodeId("node-0"), NodeId("node-1")});
  REQUIRE(outcomes.size() == 2);
  CHECK(outcomes[0].error);
  CHECK(!outcomes[1].error);
  CHECK(provider->list().size() == 1);
}

TEST_CASE("ssh: hosts are there as they are listed; none is made, none is given back") {
  const testing::TemporaryFolder folder;
  ClusterSpec spec;
  spec.provider.kind = ProviderKind::ssh;
  for (const char* name : {"a", "b"}) {
    HostSpec host;
    host.host = name;
    host.node = NodeId(name);
    host.address = name == std::string("b") ? "10.0.0.2" : "";
    spec.provider.hosts.push_back(host);
  }
  const auto provider = make_provider(spec, folder.path());
  const std::vector<Machine> machines = provider->list();
  REQUIRE(machines.size() == 2);
  CHECK(machines[0].head);
  CHECK(machines[0].address == "a");
  CHECK(!machines[1].head);
  CHECK(machines[1].address == "10.0.0.2");
  CHECK(machines[1].external_address == "b");
  const auto outcomes = create(*provider, {NodeId("b"), NodeId("c")});
  CHECK(outcomes[0].machine.state == MachineState::running);
  CHECK(outcomes[1].error->message() == "no host of provider ssh is node c");
  CHECK(release(*provider, machines)[1].machine.state == MachineState::running);
  CHECK(provider->list().size() == 2);
  Machine stranger;
  stranger.node = NodeId("c");
  CHECK_THROWS_AS(provider->reach(stranger), Error);
}

TEST_CASE("slurm: typed on another login node than the head's it says where that is") {
  const testing::TemporaryFolder folder;
  ClusterSpec spec;
  spec.cluster_name = "pool";
  spec.provider.kind = ProviderKind::slurm;
  spec.provider.other["shared_folder"] = folder.path().string();
  const auto provider = make_provider(spec, folder.path());
  const Machine login = provider->list().front();
  provider->reach(login);  // it is nowhere yet
  provider->head_starts(*provider->reach(login), ClusterId("pool-aaaaaa"));
  provider->reach(login);
  write_file_atomic(folder.path() / "pool-aaaaaa/head.host", "other\nother.cluster.example\n");
  try {
    provider->reach(login);
    FAIL("it is not there");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::unreachable);
    CHECK(error.message().find(
              "the head of cluster pool is on other.cluster.example, and this is ") == 0);
    CHECK(error.hint().find("pool-aaaaaa/head.host") != std::string::npos);
  }
  // In a folder of a group others may write such.
  if (::chown((folder.path() / "pool-aaaaaa/head.host").c_str(), 12345, 12345) == 0) {
    provider->reach(login);
  }
}
