// Attempts in control groups: this machine's own where it has them, and, for the memory that few
// machines give away, a folder with the files that the kernel would show.

#include "agent/supervise/group.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "agent/supervise/record.hpp"
#include "launcher/core/cgroup.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process_table.hpp"
#include "tests/agent/supervise/driver.hpp"
#include "tests/support/patience.hpp"

using namespace dtrain;
using dtrain::testing::Driver;
using dtrain::testing::gone;
using dtrain::testing::wait_until;
using Outcome = wire::NodeFinished::Outcome;

namespace {

constexpr std::uint64_t kLimit = std::uint64_t{64} << 20;
const std::string kGroup = "dtrain-" + testing::cluster_of_tests() + "-node-0-job-abcdef.1";

// Says so aloud where this machine gives no groups away.
bool real_groups() {
  const auto own = cgroup::own();
  const fs::path probe = own.value_or("/proc") / ("dtrain-test-" + random_hex(8));
  if (::mkdir(probe.c_str(), 0755) == 0) return cgroup::remove(probe, dtrain::testing::kPatience);
  MESSAGE("skipped: no cgroup v2 can be made here");
  return false;
}

std::vector<wire::AttemptWarning> warnings(const Driver& driver) {
  std::vector<wire::AttemptWarning> found;
  for (const auto& event : driver.seen) {
    if (const auto* warning = std::get_if<wire::AttemptWarning>(&event.body)) {
      found.push_back(*warning);
    }
  }
  return found;
}

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

// The kernel's files in a folder: a root group that holds the attempt's, and that one's parts.
class Imitation {
 public:
  explicit Imitation(Driver& driver)
      : places_(driver.file("places")), base_(places_ / "cgroup fs") {
    write(places_ / "mountinfo",
          "30 23 0:26 / " + places_.string() + "/cgroup\\040fs rw - cgroup2 cgroup2 rw\n");
    write(places_ / "cgroup", "0::/\n");
    group(base_);
    group(attempt());
    for (const char* part : {"setup", "rank-0", "rank-1"}) {
      group(attempt() / part);
      for (const char* file : {"memory.max", "memory.swap.max", "memory.oom.group"}) {
        write(attempt() / part / file, "");
      }
      events(part, "oom 0\noom_kill 0\n");
    }
    driver.env.push_back("TEST_PLACES=" + places_.string());
  }

  fs::path attempt() const { return base_ / kGroup; }
  fs::path base() const { return base_; }
  fs::path places() const { return places_; }
  void controllers(const std::string& words) const {
    for (const fs::path& each : {base_, attempt()}) write(each / "cgroup.controllers", words);
  }
  void events(const std::string& part, const std::string& text) const {
    write(attempt() / part / "memory.events", text);
  }
  void peak(const std::string& part, std::uint64_t bytes) const {
    write(attempt() / part / "memory.peak", std::to_string(bytes) + "\n");
  }
  std::string read(const std::string& part, const std::string& file) const {
    return read_file(attempt() / part / file);
  }

 private:
  static void group(const fs::path& folder) {
    write(folder / "cgroup.controllers", "cpu memory pids\n");
    write(folder / "cgroup.subtree_control", "");
    write(folder / "cgroup.procs", "");
  }

  fs::path places_;
  fs::path base_;
};

}  // namespace

TEST_CASE("group: each rank is in its own from its first instruction on, and none is left") {
  if (!real_groups()) return;
  Driver driver;
  driver.spec.setup = "cat /proc/self/cgroup >setup";
  driver.shell("cat /proc/self/cgroup; env -i setsid cat /proc/self/cgroup", 2);
  driver.start_and_connect();
  CHECK(driver.finish().outcome == Outcome::succeeded);
  const std::string name = "/" + kGroup + "/";
  CHECK(read_file(driver.file("work/setup")).find(name + "setup\n") != std::string::npos);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string own = name + "rank-" + std::to_string(rank) + "\n";
    const std::string out = driver.out(rank);
    CHECK(out.find(own) != std::string::npos);
    CHECK(out.rfind(own) != out.find(own));
  }
  REQUIRE_FALSE(driver.group().empty());
  CHECK_FALSE(fs::exists(driver.group()));
  CHECK(warnings(driver).empty());
}

TEST_CASE(
    "group: kill -9 of the supervisor leaves what has neither parent nor token, for a while") {
  if (!real_groups()) return;
  Driver driver;
  driver.shell(
      "env -i setsid sh -c 'trap \"\" TERM; echo $$ >hidden; while :; do sleep 1000; done' & "
      "mkfifo f; read x <f");
  driver.start_and_connect();
  const pid_t hidden = std::stoi(driver.wait_for_line("work/hidden"));
  driver.kill_supervisor();
  CHECK_FALSE(gone(hidden));
  const auto lock = supervise::AttemptLock::take(driver.root);
  REQUIRE(lock.has_value());
  CHECK(supervise::clean_after(driver.root, *lock).empty());
  CHECK(gone(hidden));
  CHECK_FALSE(fs::exists(driver.group()));
  CHECK(supervise::clean_after(driver.root, *lock).empty());
}

TEST_CASE("group: a record is not believed for what is not this attempt's, nor after a reboot") {
  if (!real_groups()) return;
  Driver driver;
  driver.shell("mkfifo f; echo up >up; read x <f");
  driver.start_and_connect();
  const auto started = driver.until<wire::RanksStarted>();
  driver.wait_for_line("work/up");
  const pid_t rank = started.ranks.at(0).pid;
  const fs::path real = driver.group();

  wire::AttemptSpec other = driver.spec;
  other.attempt = 2;
  CHECK(supervise::clean_group(real, other, std::chrono::milliseconds(0)).empty());
  CHECK(supervise::clean_group(real / "rank-0", driver.spec, std::chrono::milliseconds(0)).empty());
  CHECK_FALSE(gone(rank));
  CHECK(fs::exists(real));

  auto record = supervise::read_supervisor(driver.root);
  REQUIRE(record.has_value());
  const std::string boot = std::exchange(record->boot_id, "another boot");
  supervise::write_supervisor(driver.root, *record);
  driver.kill_supervisor();
  const auto lock = supervise::AttemptLock::take(driver.root);
  REQUIRE(lock.has_value());
  supervise::clean_after(driver.root, *lock);
  CHECK(fs::exists(real));
  record->boot_id = boot;
  supervise::write_supervisor(driver.root, *record);
  supervise::clean_after(driver.root, *lock);
  CHECK_FALSE(fs::exists(real));
}

TEST_CASE("group: memory is limited for each rank, and for setup by what they have together") {
  Driver driver;
  const Imitation kernel(driver);
  driver.spec.rank_memory = kLimit;
  driver.spec.setup = "true";
  driver.shell("true", 2);
  driver.start_and_connect();
  CHECK(driver.finish().outcome == Outcome::succeeded);
  CHECK(read_file(kernel.base() / "cgroup.subtree_control") == "+memory");
  CHECK(read_file(kernel.attempt() / "cgroup.subtree_control") == "+memory");
  CHECK(kernel.read("rank-0", "memory.max") == std::to_string(kLimit));
  CHECK(kernel.read("rank-1", "memory.max") == std::to_string(kLimit));
  CHECK(kernel.read("setup", "memory.max") == std::to_string(2 * kLimit));
  for (const char* part : {"setup", "rank-0", "rank-1"}) {
    CHECK(kernel.read(part, "memory.swap.max") == "0");
    CHECK(kernel.read(part, "memory.oom.group") == "1");
    CHECK(kernel.read(part, "cgroup.procs").find('0') != std::string::npos);
  }
  CHECK(warnings(driver).empty());
}

TEST_CASE("group: killed for memory is told as the cause") {
  Driver driver;
  const Imitation kernel(driver);
  driver.spec.rank_memory = kLimit;
  driver.shell("if [ $RANK = 1 ]; then kill -KILL $$; fi; mkfifo f; read x <f", 2);
  std::string cause;
  SUBCASE("by its own limit") {
    kernel.events("rank-1", "max 12\noom 1\noom_kill 4\n");
    kernel.peak("rank-1", kLimit);
    cause = "killed for memory: it used 64.0 MiB of 64.0 MiB";
  }
  SUBCASE("by its own limit, on a kernel that keeps no peak") {
    kernel.events("rank-1", "max 12\noom 1\noom_kill 1\n");
    cause = "killed for memory: it used 64.0 MiB of 64.0 MiB";
  }
  SUBCASE("within its limit: the machine had no memory left") {
    kernel.events("rank-1", "max 0\noom 0\noom_kill 1\n");
    kernel.peak("rank-1", kLimit / 4);
    cause =
        "killed for memory: its machine, or a limit that others set for it, had none left; it used "
        "16.0 MiB";
  }
  SUBCASE("by somebody else: nothing is guessed") {
    kernel.events("rank-1", "max 7\noom 0\noom_kill 0\n");
    kernel.peak("rank-1", kLimit);
  }
  driver.start_and_connect();
  const auto exited = driver.until<wire::RankExited>();
  CHECK(exited.rank == 1);
  CHECK(exited.cause == cause);
  const auto other = driver.until<wire::RankExited>();
  CHECK(other.stopped);
  CHECK(other.cause.empty());
  CHECK(driver.finish().reason ==
        "rank 1 on node-0: signal 9 (SIGKILL)" + (cause.empty() ? "" : ", " + cause));
}

TEST_CASE(
    "group: a rank that went on without a process that was killed for memory succeeds, warned") {
  Driver driver;
  const Imitation kernel(driver);
  kernel.events("rank-0", "oom 0\noom_kill 1\n");
  driver.shell("true");
  driver.start_and_connect();
  CHECK(driver.until<wire::RankExited>().cause.empty());
  CHECK(driver.finish().outcome == Outcome::succeeded);
  const auto said = warnings(driver);
  REQUIRE(said.size() == 1);
  CHECK(said[0].rank == 0);
  CHECK(said[0].message.find("a process of it was killed for memory") == 0);
}

TEST_CASE("group: the kernel holds a rank to its memory, and kills all of it") {
  if (!real_groups()) return;
  if (!cgroup::lists(cgroup::own().value() / "cgroup.controllers", "memory")) {
    MESSAGE("skipped: cgroup v2 has no memory controller here");
    return;
  }
  Driver driver;
  driver.spec.rank_memory = kLimit;
  // tail keeps a line until it has seen its end.
  driver.shell(
      "if [ $RANK = 0 ]; then mkfifo f; read x <f; fi; "
      "setsid sleep 1000 & head -c 500000000 /dev/zero | tail -n 1",
      2);
  driver.start_and_connect();
  const auto exited = driver.until<wire::RankExited>();
  CHECK(exited.rank == 1);
  CHECK(exited.exit.signal == SIGKILL);
  CHECK(exited.cause == "killed for memory: it used 64.0 MiB of 64.0 MiB");
  CHECK(driver.finish().outcome == Outcome::failed);
  CHECK(warnings(driver).empty());
}

TEST_CASE("group: without one the kernel's log says who was killed for memory") {
  Driver driver;
  const fs::path places = driver.file("places");
  fs::create_directories(places / "ns");
  write(places / "dev/kmsg", "3,1,1,-;Out of memory: Killed process 1 (before) total-vm:1kB\n");
  driver.env.push_back("TEST_PLACES=" + places.string());
  std::string first = "pid:[4026531836]";
  std::string line = "3,2,2,-;Out of memory: Killed process $$ (sh) total-vm:9kB";
  std::string cause;
  SUBCASE("the machine had none left") {
    cause = "killed for memory: its machine had none left";
  }
  SUBCASE("a limit of others") {
    line = "3,2,2,-;Memory cgroup out of memory: Killed process $$ (sh) total-vm:9kB";
    cause = "killed for memory: a limit that others set for it was reached";
  }
  SUBCASE("it was another process") {
    line = "3,2,2,-;Out of memory: Killed process $$0 (sh)";
  }
  SUBCASE("in a container its pids are not ours") {
    first = "pid:[4026532001]";
  }
  fs::create_symlink(first, places / "ns/pid");
  driver.shell("echo \"" + line + "\" >>" + (places / "dev/kmsg").string() + "; kill -KILL $$");
  driver.start_and_connect();
  const auto exited = driver.until<wire::RankExited>();
  CHECK(exited.exit.signal == SIGKILL);
  CHECK(exited.cause == cause);
  driver.finish();
}

TEST_CASE("group: setup that is killed for memory") {
  Driver driver;
  const Imitation kernel(driver);
  kernel.events("setup", "oom 1\noom_kill 1\n");
  driver.spec.rank_memory = kLimit;
  driver.spec.setup = "kill -KILL $$";
  driver.shell("true", 2);
  driver.start_and_connect();
  CHECK(driver.finish().reason ==
        "setup on node-0: signal 9 (SIGKILL), killed for memory: it used 128.0 MiB of 128.0 MiB");
}

TEST_CASE("group: a limit that cannot be had is said once, if the job asked for one") {
  Driver driver;
  const Imitation kernel(driver);
  driver.shell("true", 2);
  driver.spec.rank_memory = kLimit;
  std::string why;
  SUBCASE("the controller is not there") {
    kernel.controllers("cpu pids\n");
    why = "the memory controller of cgroup v2 is not delegated to " + kernel.base().string();
  }
  SUBCASE("nothing is mounted") {
    write(kernel.places() / "mountinfo", "");
    why = "no cgroup v2 is mounted here";
  }
  SUBCASE("the kernel takes the limit of no rank") {
    fs::remove(kernel.attempt() / "rank-0" / "memory.max");
    why = "cannot open " + (kernel.attempt() / "rank-0" / "memory.max").string();
  }
  driver.start_and_connect();
  CHECK(driver.finish().outcome == Outcome::succeeded);
  const auto said = warnings(driver);
  REQUIRE(said.size() == 1);
  CAPTURE(said[0].message);
  CHECK_FALSE(said[0].rank.has_value());
  CHECK(said[0].message.find("memory is not enforced: " + why) == 0);
  CHECK(said[0].message.find("docs/job_yaml.md") != std::string::npos);
}

TEST_CASE("group: a limit that nobody asked for is not missed") {
  Driver driver;
  const Imitation kernel(driver);
  kernel.controllers("cpu pids\n");
  driver.shell("true");
  driver.start_and_connect();
  CHECK(driver.finish().outcome == Outcome::succeeded);
  CHECK(warnings(driver).empty());
}

// A machine with systemd as far as a supervisor sees it: busctl notes how it was called, and does
// what the manager would.
TEST_CASE("group: systemd is asked for a scope of the attempt's own") {
  if (!real_groups()) return;
  Driver driver;
  const fs::path places = driver.file("places");
  fs::create_directories(places / "run/systemd/system");
  fs::create_symlink("/proc/self/mountinfo", places / "mountinfo");
  fs::create_symlink("/proc/self/cgroup", places / "cgroup");
  const fs::path scope = cgroup::own().value() / ("dtrain-test-" + random_hex(8) + ".scope");
  const std::string note = "echo \"$*\" >" + driver.file("asked").string() + "\n";
  std::string does;
  bool granted = false;
  SUBCASE("and gives one") {
    // Its pid stands behind "PIDs au 1".
    does = "mkdir " + scope.string() + "; while [ $1 != PIDs ]; do shift; done; echo $4 >" +
           scope.string() + "/cgroup.procs\n";
    granted = true;
  }
  SUBCASE("and refuses") {
    does = "echo 'Call failed: Access denied' >&2; exit 1\n";
  }
  write(driver.file("bin/busctl"), "#!/bin/sh\n" + note + does);
  fs::permissions(driver.file("bin/busctl"), fs::perms::owner_all);
  driver.env.push_back("TEST_PLACES=" + places.string());
  std::erase_if(driver.env, [](const std::string& entry) { return entry.starts_with("PATH="); });
  driver.env.push_back("PATH=" + driver.file("bin").string() + ":/usr/bin:/bin");
  driver.env.push_back("USER=ada");
  write(places / "var/lib/systemd/linger/ada", "");
  driver.shell("cat /proc/self/cgroup");
  driver.start_and_connect();
  const pid_t supervisor = driver.supervisor();
  CHECK(driver.finish().outcome == Outcome::succeeded);
  const std::string asked = driver.wait_for_line("asked");
  CAPTURE(asked);
  const bool root = ::geteuid() == 0;
  CHECK(asked.starts_with(root ? "--timeout=5 call" : "--user --timeout=5 call"));
  CHECK(asked.find("StartTransientUnit ssa(sv)a(sa(sv)) " + kGroup + ".scope fail 5 PIDs au 1 " +
                   std::to_string(supervisor) + " Delegate b true ") != std::string::npos);
  const std::string name = "/" + kGroup + "/rank-0\n";
  const fs::path within = granted ? scope.filename() / name.substr(1) : fs::path(name);
  CHECK(driver.out(0).find(within.string()) != std::string::npos);
  // Alone in its scope, it makes room there for controllers.
  if (granted) {
    CHECK(fs::exists(scope / "supervisor") ==
          cgroup::lists(scope / "cgroup.controllers", "memory"));
    CHECK(cgroup::lists(scope / "cgroup.subtree_control", "memory") ==
          cgroup::lists(scope / "cgroup.controllers", "memory"));
  }
  if (granted) CHECK(cgroup::remove(scope, dtrain::testing::kPatience));
}
