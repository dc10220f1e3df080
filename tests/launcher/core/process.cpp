#include "launcher/core/process.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/text.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;

namespace {

constexpr std::chrono::seconds kDeadline{20};

SpawnOptions shell(const std::string& line) {
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", line};
  options.env = current_environment();
  return options;
}

std::string output_of(const SpawnOptions& options) {
  const Captured captured = capture(options, "", kDeadline);
  CHECK(captured.exit.str() == "exit code 0");
  return captured.out;
}

template <typename Condition>
void wait_until(Condition holds) {
  const auto until = std::chrono::steady_clock::now() + kDeadline;
  while (!holds()) {
    REQUIRE(std::chrono::steady_clock::now() < until);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// A process that lives until it is killed, at the latest when the test ends.
pid_t sleeper(const std::vector<std::string>& env = current_environment()) {
  SpawnOptions options;
  options.argv = {"/bin/sleep", "1000"};
  options.env = env;
  options.death_signal = SIGKILL;
  return spawn(options);
}

}  // namespace

TEST_CASE("exits are told as code or signal") {
  CHECK(wait(spawn(shell("exit 3"))) == ProcessExit{3, 0});
  CHECK(wait(spawn(shell("kill -9 $$"))) == ProcessExit{0, 9});
  CHECK(ProcessExit{3, 0}.str() == "exit code 3");
  CHECK(ProcessExit{0, 9}.str() == "signal 9 (SIGKILL)");
  CHECK(ProcessExit{0, 9}.shell_code() == 137);
  CHECK(ProcessExit{}.ok());
  CHECK(signal_name(SIGRTMIN + 6) == "signal " + std::to_string(SIGRTMIN + 6));
  const pid_t pid = sleeper();
  CHECK_FALSE(try_wait(pid).has_value());
  ::kill(pid, SIGKILL);
  CHECK(wait(pid).signal == SIGKILL);
  CHECK_THROWS_AS(try_wait(pid), Error);
}

TEST_CASE("programs are looked up in the PATH of the child") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "prog", "#!/bin/sh\necho mine\n", 0755);
  SpawnOptions options;
  options.argv = {"prog"};
  options.env = {"PATH=/nowhere:" + folder.path().string() + ":/bin:/usr/bin"};
  CHECK(output_of(options) == "mine\n");
  options.env = {"PATH=/nowhere"};
  CHECK_THROWS_WITH_AS(spawn(options), "no program prog in PATH (/nowhere)", Error);
}

TEST_CASE("what cannot be started is an error that names it") {
  const TemporaryFolder folder;
  SpawnOptions options;
  options.argv = {"/no/such"};
  CHECK_THROWS_WITH_AS(spawn(options), "cannot start /no/such: No such file or directory", Error);
  options.argv = {"/bin/true"};
  options.workdir = "/no/folder";
  CHECK_THROWS_AS(spawn(options), Error);
  options.workdir = "";
  write_file_atomic(folder / "plain", "x", 0644);
  options.argv = {(folder / "plain").string()};
  CHECK_THROWS_AS(spawn(options), Error);
  options.argv = {};
  CHECK_THROWS_AS(spawn(options), Error);
}

TEST_CASE("a child has stdio, what it inherits, and no other descriptor") {
  const TemporaryFolder folder;
  const UniqueFd open_by_chance(::open("/dev/null", O_RDONLY));  // without close-on-exec
  const UniqueFd high(::fcntl(open_by_chance.get(), F_DUPFD, 500));
  write_file_atomic(folder / "f", "content");
  const UniqueFd file = open_file(folder / "f", O_RDONLY);
  SpawnOptions options = shell("cat <&7; exec ls /proc/self/fd");
  options.inherit = {{file.get(), 7}};
  CHECK(output_of(options) == "content0\n1\n2\n3\n7\n");  // 3 is the folder that ls reads
}

TEST_CASE("inherited descriptors may stand in each other's way") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "a", "a");
  write_file_atomic(folder / "b", "b");
  const UniqueFd a = open_file(folder / "a", O_RDONLY);
  const UniqueFd b = open_file(folder / "b", O_RDONLY);
  SpawnOptions options = shell("cat /proc/self/fd/" + std::to_string(a.get()) + " /proc/self/fd/" +
                               std::to_string(b.get()));
  options.inherit = {{a.get(), b.get()}, {b.get(), a.get()}};
  CHECK(output_of(options) == "ba");
}

TEST_CASE("signals are at their defaults in a child") {
  ::signal(SIGPIPE, SIG_IGN);
  SpawnOptions options;
  options.argv = {"/bin/grep", "-E", "Sig(Ign|Blk)", "/proc/self/status"};
  options.env = current_environment();
  CHECK(output_of(options) == "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  ::signal(SIGPIPE, SIG_DFL);
}

TEST_CASE("sessions, groups, folder, limits") {
  CHECK(output_of(shell("ps -o sid= -p $$")) != "");
  SpawnOptions options = shell("test $(ps -o pgid= -p $$) = $$ && echo leads");
  options.new_group = true;
  const pid_t pid = spawn(options);
  CHECK(wait(pid).ok());
  SpawnOptions folder = shell("pwd");
  folder.workdir = "/usr";
  CHECK(output_of(folder) == "/usr\n");
  struct rlimit before {};
  ::getrlimit(RLIMIT_NOFILE, &before);
  struct rlimit low = before;
  low.rlim_cur = 256;
  ::setrlimit(RLIMIT_NOFILE, &low);
  SpawnOptions limits = shell("test $(ulimit -n) = $(ulimit -Hn) && echo raised");
  limits.raise_limits = true;
  CHECK(output_of(limits) == "raised\n");
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("a death signal comes when the parent dies") {
  // A parent that starts a sleeper with a death signal, says its pid, and is killed.
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const pid_t child = sleeper();
    [[maybe_unused]] const ssize_t wrote = ::write(writer.get(), &child, sizeof child);
    ::pause();
    ::_exit(0);
  }
  pid_t child = 0;
  REQUIRE(::read(reader.get(), &child, sizeof child) == sizeof child);
  CHECK(start_time(child).has_value());
  ::kill(parent, SIGKILL);
  wait(parent);
  wait_until([&] { return !start_time(child).has_value(); });
}

TEST_CASE("orphans are reaped, our own children are not") {
  // In a process of its own, for it becomes a subreaper.
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    const pid_t mine = spawn(shell("exit 7"));
    const pid_t parent = spawn(shell("/bin/sh -c 'exit 0' & exit 0"));
    if (!wait(parent).ok()) ::_exit(1);
    siginfo_t info{};
    while (info.si_pid != mine) {
      if (::waitid(P_PID, static_cast<id_t>(mine), &info, WEXITED | WNOWAIT) != 0) ::_exit(2);
    }
    const auto until = std::chrono::steady_clock::now() + kDeadline;
    while (true) {
      reap_orphans({mine});
      const std::string tid = std::to_string(::getpid());
      const std::string left = read_file("/proc/self/task/" + tid + "/children");
      if (left == std::to_string(mine) + " ") break;
      if (std::chrono::steady_clock::now() > until) ::_exit(3);
    }
    ::_exit(wait(mine).code);
  }
  CHECK(wait(pid).code == 7);
}

TEST_CASE("capture: input, both outputs, exit, deadline") {
  Captured captured =
      capture(shell("cat; echo err >&2; exit 4"), std::string(1 << 20, 'x'), kDeadline);
  CHECK(captured.out == std::string(1 << 20, 'x'));
  CHECK(captured.err == "err\n");
  CHECK(captured.exit.code == 4);
  CHECK_FALSE(captured.timed_out);
  // A program that does not read what it is given is no trouble.
  captured = capture(shell("exit 0"), std::string(1 << 20, 'x'), kDeadline);
  CHECK(captured.exit.ok());
  captured = capture(shell("echo begun; sleep 1000"), "", std::chrono::milliseconds(300));
  CHECK(captured.timed_out);
  CHECK(captured.out == "begun\n");
  CHECK(captured.exit.signal == SIGKILL);
  // It has closed its outputs, and yet it is held to its deadline.
  captured = capture(shell("exec >&- 2>&-; sleep 1000"), "", std::chrono::milliseconds(300));
  CHECK(captured.timed_out);
  CHECK(captured.exit.signal == SIGKILL);
}

TEST_CASE("a process is told from a later one of its pid") {
  CHECK(start_time(::getpid()).has_value());
  const pid_t pid = sleeper();
  const auto first = start_time(pid);
  REQUIRE(first.has_value());
  CHECK(start_time(pid) == first);
  ::kill(pid, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  CHECK_FALSE(start_time(pid).has_value());  // ended, though nobody has reaped it
  wait(pid);
  CHECK_FALSE(start_time(pid).has_value());
  CHECK(boot_id().size() == 36);
}

TEST_CASE("processes are found by a variable, whole name and whole value, and swept") {
  const std::string token = random_hex(8);
  const pid_t exact = sleeper({"A=1", "TOKEN=" + token, "B=2"});
  const pid_t last = sleeper({"TOKEN=" + token});
  const pid_t longer = sleeper({"TOKEN=" + token + "x"});
  const pid_t other = sleeper({"MYTOKEN=" + token});
  std::vector<pid_t> found = find_by_environment("TOKEN", token);
  std::sort(found.begin(), found.end());
  CHECK(found == std::vector<pid_t>{exact, last});
  CHECK(sweep("TOKEN", token, kDeadline).empty());
  CHECK(wait(exact).signal == SIGKILL);
  CHECK(wait(last).signal == SIGKILL);
  for (const pid_t pid : {longer, other}) {
    CHECK(start_time(pid).has_value());
    ::kill(pid, SIGKILL);
    wait(pid);
  }
}
