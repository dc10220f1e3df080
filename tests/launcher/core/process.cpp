#include "launcher/core/process.hpp"
#include "launcher/core/capture.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "tests/launcher/core/children.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::testing;

namespace {

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

}  // namespace

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
  CHECK(output_of(options) == "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  ::signal(SIGPIPE, SIG_DFL);
}

TEST_CASE("who starts a program knows how long that kept it waiting") {
  const auto before = waited_for_starts();
  const auto begin = std::chrono::steady_clock::now();
  CHECK(wait(spawn(shell("exit 0"))).ok());
  const auto waited = waited_for_starts() - before;
  CHECK(waited > std::chrono::nanoseconds(0));
  CHECK(waited <= std::chrono::steady_clock::now() - begin);
}

TEST_CASE("sessions, folder, limits") {
  CHECK(output_of(shell("ps -o sid= -p $$")) != "");
  SpawnOptions options = shell("test $(ps -o sid= -p $$) = $$ && echo leads");
  options.new_session = true;
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

TEST_CASE("a child has the CPUs that it is given") {
  cpu_set_t set;
  REQUIRE(::sched_getaffinity(0, sizeof set, &set) == 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(static_cast<std::size_t>(last), &set)) --last;
  SpawnOptions options;
  options.argv = {"grep", "Cpus_allowed_list", "/proc/self/status"};
  options.cpus = {last};
  CHECK(output_of(options) == "Cpus_allowed_list:\t" + std::to_string(last) + "\n");
  options.cpus = {CPU_SETSIZE - 1};
  if (last != CPU_SETSIZE - 1) CHECK_THROWS_AS(output_of(options), Error);
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
