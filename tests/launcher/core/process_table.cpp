#include "launcher/core/process_table.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/core/ids.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "tests/launcher/core/children.hpp"

using namespace dtrain;
using namespace dtrain::testing;

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

TEST_CASE("a process that has no environment yet is waited for") {
  const std::string token = random_hex(8);
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", "/bin/sleep 0.1; TOKEN=" + token + " exec /bin/sleep 1000"};
  options.env = {};
  const pid_t pid = spawn(options);
  CHECK(find_by_environment("TOKEN", token).empty());
  CHECK(sweep("TOKEN", token, kDeadline).empty());
  CHECK(wait(pid).signal == SIGKILL);
}
