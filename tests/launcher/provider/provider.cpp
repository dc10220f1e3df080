#include "launcher/provider/provider.hpp"

#include <doctest/doctest.h>

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
  }
}

TEST_CASE("a provider that is not built says so at its line") {
  const testing::TemporaryFolder folder;
  ClusterSpec spec;
  spec.provider.kind = ProviderKind::aws;
  spec.provider.location = {"c.yaml", 4, 9};
  try {
    make_provider(spec, folder.path());
    FAIL("it was made");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "c.yaml:4:9: provider aws is not built yet");
  }
}

TEST_CASE("local: nodes are folders; making and giving back can be repeated") {
  const testing::TemporaryFolder folder;
  const ClusterSpec spec;
  const auto provider = make_provider(spec, folder.path());
  CHECK(provider->list().empty());
  std::vector<NodeId> nodes;
  for (int i = 0; i < 11; ++i) nodes.emplace_back("node-" + std::to_string(i));
  for (int round = 0; round < 2; ++round) {
    for (const NodeOutcome& outcome : provider->create(nodes)) CHECK(!outcome.error);
  }
  const std::vector<Machine> machines = provider->list();
  REQUIRE(machines.size() == 11);
  CHECK(machines[2].node.str() == "node-2");
  CHECK(machines[10].node.str() == "node-10");
  write_file_atomic(machines[0].root / "file", "x");
  for (int round = 0; round < 2; ++round) {
    for (const NodeOutcome& outcome : provider->release(nodes)) CHECK(!outcome.error);
  }
  CHECK(provider->list().empty());
}

TEST_CASE("local: one failure does not throw away the others") {
  const testing::TemporaryFolder folder;
  const ClusterSpec spec;
  const auto provider = make_provider(spec, folder.path());
  make_folders(folder / "nodes");
  write_file_atomic(folder.path() / "nodes" / "node-0", "a file where a folder should be");
  const auto outcomes = provider->create({NodeId("node-0"), NodeId("node-1")});
  REQUIRE(outcomes.size() == 2);
  CHECK(outcomes[0].error);
  CHECK(!outcomes[1].error);
  CHECK(provider->list().size() == 1);
}
