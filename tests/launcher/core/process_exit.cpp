#include "launcher/core/process_exit.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "tests/launcher/core/children.hpp"

using namespace dtrain;
using namespace dtrain::testing;

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

TEST_CASE("whoever waits for any child gets each of them once") {
  // In a process of its own, for nobody else may wait there.
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (try_wait_any()) ::_exit(1);
    std::set<pid_t> awaited{spawn(shell("exit 7")), spawn(shell("exit 7"))};
    while (!awaited.empty()) {
      const auto ended = try_wait_any();
      if (ended && (awaited.erase(ended->first) != 1 || ended->second.code != 7)) ::_exit(2);
    }
    ::_exit(try_wait_any() ? 3 : 0);
  }
  CHECK(wait(pid).code == 0);
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
