#include "launcher/core/cgroup.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;

namespace {

// What the kernel would say of this process.
std::optional<fs::path> own_of(const std::string& mountinfo, const std::string& cgroup) {
  const TemporaryFolder proc;
  std::ofstream(proc / "mountinfo") << "23 1 8:1 / / rw - ext4 /dev/vda rw\n" << mountinfo;
  std::ofstream(proc / "cgroup") << cgroup;
  return cgroup::own(proc.path());
}

const std::string kAlone =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

// A group of this machine's for one test; empty where none can be made.
class RealGroup {
 public:
  RealGroup() {
    const auto own = cgroup::own();
    if (!own) return;
    const fs::path group = *own / ("dtrain-test-" + random_hex(8));
    if (::mkdir(group.c_str(), 0755) == 0) folder = group;
  }
  ~RealGroup() {
    if (folder.empty()) return;
    cgroup::kill(folder);
    cgroup::remove(folder, std::chrono::seconds(20));
  }

  fs::path folder;
};

bool gone(pid_t pid) {
  return !start_time(pid).has_value();
}

}  // namespace

TEST_CASE("cgroup: one's own is found wherever it is mounted") {
  CHECK(own_of(kAlone, "0::/user.slice/session-3.scope\n") ==
        fs::path("/sys/fs/cgroup/user.slice/session-3.scope"));
  CHECK(own_of(kAlone, "0::/\n") == fs::path("/sys/fs/cgroup"));
  CHECK(own_of("32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
               "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
               "4:memory:/a\n0::/b\n") == fs::path("/sys/fs/cgroup/unified/b"));
  // Only a part of the groups is mounted, and its name has a space.
  const std::string part = "30 23 0:26 /pod/c1 /sys/my\\040groups ro - cgroup2 cgroup2 rw\n";
  CHECK(own_of(part, "0::/pod/c1\n") == fs::path("/sys/my groups"));
  CHECK(own_of(part, "0::/pod/c1/x\n") == fs::path("/sys/my groups/x"));
  CHECK(own_of(part, "0::/pod/c12\n") == std::nullopt);
}

TEST_CASE("cgroup: there may be none") {
  CHECK(own_of("", "0::/\n") == std::nullopt);
  CHECK(own_of(kAlone, "4:memory:/a\n") == std::nullopt);
  CHECK(own_of(kAlone, "0::/../outside\n") == std::nullopt);
  const TemporaryFolder nothing;
  CHECK(cgroup::own(nothing.path()) == std::nullopt);
}

TEST_CASE("cgroup: what its memory came to") {
  const TemporaryFolder group;
  CHECK_FALSE(cgroup::memory(group.path()).has_value());
  std::ofstream(group / "memory.events")
      << "low 0\nhigh 0\nmax 31\noom 2\noom_kill 3\noom_group_kill 1\n";
  auto memory = cgroup::memory(group.path());
  REQUIRE(memory.has_value());
  CHECK(memory->limit_reached == 2);
  CHECK(memory->killed == 3);
  CHECK_FALSE(memory->peak.has_value());
  std::ofstream(group / "memory.peak") << "4096\n";
  CHECK(cgroup::memory(group.path())->peak == 4096U);
}

TEST_CASE("cgroup: words of a file") {
  const TemporaryFolder group;
  std::ofstream(group / "cgroup.controllers") << "cpu memory pids\n";
  CHECK(cgroup::lists(group / "cgroup.controllers", "memory"));
  CHECK(cgroup::lists(group / "cgroup.controllers", "pids"));
  CHECK_FALSE(cgroup::lists(group / "cgroup.controllers", "mem"));
  CHECK_FALSE(cgroup::lists(group / "none", "memory"));
}

TEST_CASE("cgroup: a process is in its group before its program starts, and so is all it starts") {
  const RealGroup group;
  if (group.folder.empty()) {
    MESSAGE("skipped: no cgroup v2 can be made here");
    return;
  }
  const fs::path part = group.folder / "part";
  REQUIRE(::mkdir(part.c_str(), 0755) == 0);
  const UniqueFd entry = open_file(part / "cgroup.procs", O_WRONLY);
  const TemporaryFolder folder;
  SpawnOptions options;
  options.argv = {
      "/bin/sh", "-c",
      "cat /proc/self/cgroup >cgroup; env -i setsid sleep 1000 & mkfifo f; echo up >up; "
      "read x <f"};
  options.workdir = folder.path().string();
  const pid_t pid = cgroup::spawn(options, entry.get());
  while (!read_file_if_there(folder / "up").value_or("").ends_with("\n")) {
    REQUIRE_FALSE(gone(pid));
  }
  CHECK(read_file(folder / "cgroup").find("/" + group.folder.filename().string() + "/part\n") !=
        std::string::npos);
  std::vector<pid_t> members = cgroup::processes(group.folder);
  CHECK(members.size() == 2);
  CHECK(std::find(members.begin(), members.end(), pid) != members.end());

  CHECK_FALSE(cgroup::remove(group.folder, std::chrono::milliseconds(0)));
  cgroup::kill(group.folder);
  CHECK(wait(pid).signal == SIGKILL);
  CHECK(cgroup::remove(group.folder, std::chrono::seconds(20)));
  for (const pid_t member : members) CHECK(gone(member));
  CHECK_FALSE(fs::exists(group.folder));
  CHECK(cgroup::processes(group.folder).empty());
  CHECK(cgroup::remove(group.folder, std::chrono::milliseconds(0)));
}

TEST_CASE("cgroup: a process that may not enter is not started") {
  const TemporaryFolder folder;
  const UniqueFd no_entry = open_file("/dev/null", O_RDONLY);
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", "echo >started"};
  options.workdir = folder.path().string();
  CHECK_THROWS_WITH_AS(cgroup::spawn(options, no_entry.get()), doctest::Contains("in its cgroup"),
                       Error);
  CHECK_FALSE(fs::exists(folder / "started"));
}
