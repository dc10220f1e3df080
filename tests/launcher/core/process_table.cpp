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
  CHECK(process_stat(pid)->parent == ::getpid());
  CHECK(process_stat(pid)->threads == 1);
  CHECK_FALSE(process_stat(pid)->ended());
  ::kill(pid, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  CHECK_FALSE(start_time(pid).has_value());  // ended, though nobody has reaped it
  CHECK(process_stat(pid)->ended());
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

TEST_CASE("a process that does nothing but exec is found") {
  for (int round = 0; round < 20; ++round) {
    const std::string token = random_hex(8);
    SpawnOptions options;
    options.argv = {"/bin/sh", "-c", "exec /bin/sh -c \"$0\" \"$0\"",
                    "exec /bin/sh -c \"$0\" \"$0\""};
    options.env = {"TOKEN=" + token};
    const pid_t pid = spawn(options);
    CHECK(sweep("TOKEN", token, kDeadline).empty());
    REQUIRE(wait(pid).signal == SIGKILL);
  }
}

TEST_CASE("one without any environment is not waited for") {
  SpawnOptions options;
  options.argv = {"/bin/sleep", "1000"};
  options.env = {};
  const pid_t pid = spawn(options);
  while (arguments_of(pid).empty()) {
  }
  CHECK(environment_of(pid) == "");
  ::kill(pid, SIGKILL);
  wait(pid);
}
