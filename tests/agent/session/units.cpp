#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <set>

#include "agent/head/machines/keeper.hpp"
#include "agent/session/host.hpp"
#include "agent/session/join.hpp"
#include "agent/session/place.hpp"
#include "agent/session/removal.hpp"
#include "agent/session/setup.hpp"
#include "agent/session/shell.hpp"
#include "launcher/core/error.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/variable_is.hpp"

using namespace dtrain;
using namespace dtrain::session;
using dtrain::testing::TemporaryFolder;
using dtrain::testing::VariableIs;

namespace {

void write(const fs::path& file, const std::string& text) {
  make_folders(file.parent_path());
  write_file_atomic(file, text);
}

}  // namespace

TEST_CASE("file systems of the network are known") {
  CHECK(is_network_filesystem(0x6969));      // NFS
  CHECK(is_network_filesystem(0x0BD00BD0));  // Lustre
  CHECK_FALSE(is_network_filesystem(0xEF53));
  CHECK_FALSE(is_network_filesystem(0x12345678));
}

TEST_CASE("logind: its file, drop-ins, and what it was built with") {
  const TemporaryFolder root;
  const fs::path conf = root / "etc/systemd/logind.conf";
  CHECK_FALSE(logind_kills(root.path(), "ada"));
  write(conf, "[Login]\n#KillUserProcesses=yes\n");
  CHECK(logind_kills(root.path(), "ada"));
  CHECK_FALSE(logind_kills(root.path(), "root"));  // KillExcludeUsers has root unless it is set
  write(conf, "[Login]\n#KillUserProcesses=no\n");
  CHECK_FALSE(logind_kills(root.path(), "ada"));
  write(conf, "[Login]\nKillUserProcesses = yes\nKillExcludeUsers=root ada\n");
  CHECK_FALSE(logind_kills(root.path(), "ada"));
  CHECK(logind_kills(root.path(), "bob"));
  write(conf, "[Login]\nKillUserProcesses=yes\nKillOnlyUsers=bob\n");
  CHECK_FALSE(logind_kills(root.path(), "ada"));
  CHECK(logind_kills(root.path(), "bob"));
  // A later name wins, whichever folder it lies in.
  write(root / "run/systemd/logind.conf.d/90-late.conf", "[Login]\nKillUserProcesses=no\n");
  write(root / "etc/systemd/logind.conf.d/10-early.conf", "[Login]\nKillUserProcesses=yes\n");
  CHECK_FALSE(logind_kills(root.path(), "bob"));
}

TEST_CASE("bases: absolute or below the home") {
  CHECK(expand_base("~", "/home/ada") == "/home/ada");
  CHECK(expand_base("~/x y", "/home/ada") == "/home/ada/x y");
  CHECK(expand_base("/scratch/../data", "/home/ada") == "/data");
  for (const char* wrong : {"", "x", "~bob/x", "./x"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(expand_base(wrong, "/home/ada"), Error);
  }
}

TEST_CASE("bases: the spare one only while it is this user's, and no link") {
  const TemporaryFolder folder;
  const fs::path spare = folder / "spare";
  const VariableIs named("DTRAIN_SPARE_ROOT", spare.string());
  const std::set<fs::path> without{"/scratch/ada", "/home/ada/.dtrain"};
  std::set<fs::path> with = without;
  with.insert(spare);
  wire::HostFacts host;
  host.base = spare.string();
  host.home = "/home/ada";
  const wire::OpenNode node{ClusterId("lab-abcdef"), NodeId("node-0"), "", false, false, {}};
  CHECK(known_bases("/scratch/ada", "/home/ada") == with);  // not there yet
  CHECK(place_of(node, host, "/agent").base == spare);
  make_folders(spare);
  CHECK(known_bases("/scratch/ada", "/home/ada") == with);
  CHECK(place_of(node, host, "/agent").base == spare);
  SUBCASE("a link") {
    fs::rename(spare, folder / "elsewhere");
    fs::create_directory_symlink(folder / "elsewhere", spare);
  }
  SUBCASE("a link that leads nowhere") {
    fs::remove(spare);
    fs::create_symlink(folder / "nowhere", spare);
  }
  SUBCASE("another user's") {
    if (::geteuid() != 0) {
      MESSAGE("skipped: a folder of another user needs root");
      return;
    }
    REQUIRE(::chown(spare.c_str(), 12345, 12345) == 0);
  }
  CHECK(known_bases("/scratch/ada", "/home/ada") == without);
  CHECK(known_bases(spare, "/home/ada") == std::set<fs::path>{"/home/ada/.dtrain"});
  CHECK_THROWS_AS(place_of(node, host, "/agent"), Error);
}

TEST_CASE("removal: programs in a home that machines share go with the head's own node alone") {
  const TemporaryFolder folder;
  const fs::path home = folder / "home";
  const fs::path spare = folder / "spare";
  const VariableIs at_home("HOME", home.string());
  const VariableIs named("DTRAIN_SPARE_ROOT", spare.string());
  const fs::path in_home = home / ".dtrain/agents/0123abcd/dtrain-agent";
  const fs::path in_spare = spare / "agents/0123abcd/dtrain-agent";
  wire::HostFacts host;
  host.base = spare.string();
  host.home = home.string();
  host.home_on_network = true;
  bool head = false;
  bool stays = true;
  SUBCASE("another node, whose programs the head and other nodes run") {}
  SUBCASE("the head's") {
    head = true;
    stays = false;
  }
  SUBCASE("a home of the machine's own") {
    host.home_on_network = false;
    stays = false;
  }
  write(in_home, "an agent");
  write(in_spare, "an agent");
  const wire::OpenNode node{ClusterId("lab-abcdef"), NodeId("node-0"), "", true, head, {}};
  const NodePlace place = place_of(node, host, in_home);
  make_folders(place.root().root);
  CHECK(remove_files(place, {head, false}, host).left.empty());
  CHECK_FALSE(fs::exists(place.folder()));
  CHECK(fs::exists(in_home) == stays);
  CHECK_FALSE(fs::exists(spare));
}

TEST_CASE("joining: a head that is away is tried for as long as its machine is of use") {
  JoinOptions options;
  CHECK(tried_for(options) == std::chrono::minutes(2));  // somebody waits for the line's end
  options.contained = [](const paths::WatchRoot&) { return 0; };
  REQUIRE(tried_for(options));
  CHECK(*tried_for(options) > head::MachineKeeper::kJoinLimit);
  options.place = "/home/ada/.dtrain/lab-abcdef/head/place";  // it comes back, from Slurm's queue
  CHECK_FALSE(tried_for(options));
}

TEST_CASE("what belongs to a login alone, or is to end with another cluster, does not go on") {
  for (const char* name : {"SSH_CONNECTION", "DTRAIN_EXEC_ROOT", "DTRAIN_SETUP_ROOT"}) {
    ::setenv(name, "x", 1);
  }
  forget_login();
  CHECK(std::getenv("SSH_CONNECTION") == nullptr);
  CHECK(std::getenv("DTRAIN_EXEC_ROOT") == nullptr);
  CHECK(std::getenv("DTRAIN_SETUP_ROOT") == nullptr);
  CHECK(std::getenv("PATH") != nullptr);
}

TEST_CASE("a command's hash is of it and all before it") {
  const auto one = setup_chain({"a", "b", "c"});
  const auto two = setup_chain({"a", "x", "c"});
  CHECK(one[0] == two[0]);
  CHECK(one[1] != two[1]);
  CHECK(one[2] != two[2]);
  CHECK(setup_chain({"a\nb"})[0] != setup_chain({"a", "b"})[1]);
  CHECK(setup_chain({}).empty());
}

TEST_CASE("the last lines, as they may be shown") {
  CHECK(last_lines("", 5).empty());
  CHECK(last_lines("a\nb\nc\n\n", 2) == std::vector<std::string>{"b", "c"});
  CHECK(last_lines("10%\r50%\r100%\r\nend\x1b[2J", 5) ==
        std::vector<std::string>{"100%", "end\\x1b[2J"});
}

TEST_CASE("an environment over another") {
  CHECK(shell_environment({"A=1", "B=2", "odd"}, {{"B", "3"}, {"C", "x=y"}}) ==
        std::vector<std::string>{"A=1", "B=3", "C=x=y", "TERM=dumb"});
  CHECK(shell_environment({"TERM=xterm"}, {}) == std::vector<std::string>{"TERM=xterm"});
}
