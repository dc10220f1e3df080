#include "launcher/cluster/local_paths.hpp"

#include <doctest/doctest.h>

#include "launcher/core/files.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using What = LocalPath::What;

TEST_CASE("all that is missing on this machine is named, each at its place") {
  const testing::TemporaryFolder folder;
  write_file_atomic(folder / "there", "x");
  write_file_atomic(folder / "agent.pub", "x");
  const auto at = [&](const char* name) { return (folder / name).string(); };
  ClusterSpec spec;
  spec.provider.kind = ProviderKind::ssh;
  spec.local_paths = {
      {What::mount, "file_mounts./a", at("there"), {"c.yaml", 1, 2}},
      {What::mount, "file_mounts./b", at("none"), {"c.yaml", 2, 2}},
      {What::key, "auth.ssh_private_key", at("nokey"), {"c.yaml", 3, 2}},
      {What::key, "auth.ssh_private_key", at("agent"), {"c.yaml", 4, 2}},
      {What::mount, "file_mounts./c", at("there/below"), {"c.yaml", 5, 2}},
      {What::mount, "file_mounts./d", at(std::string(300, 'x').c_str()), {"c.yaml", 6, 2}},
      {What::public_key, "auth.ssh_public_key", at("agent"), {"c.yaml", 7, 2}}};
  const std::vector<Error> errors = missing_local_paths(spec);
  REQUIRE(errors.size() == 5);
  CHECK(std::string(errors[0].what()) == "c.yaml:2:2: file_mounts./b: there is no " + at("none"));
  CHECK(errors[1].location()->line == 3);
  CHECK(errors[2].location()->line == 5);
  CHECK(std::string(errors[3].what()).find("cannot look at") != std::string::npos);
  CHECK(errors[4].location()->line == 7);
  for (const Error& error : errors) CHECK(error.code() == ErrorCode::invalid);
  spec.provider.kind = ProviderKind::local;
  CHECK(missing_local_paths(spec).empty());
}
