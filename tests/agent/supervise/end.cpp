// How attempts end: failures, stops, what will not die, and the supervisor's own death.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/core/process_table.hpp"
#include "tests/agent/supervise/driver.hpp"

using namespace dtrain;
using dtrain::testing::Driver;
using dtrain::testing::gone;
using dtrain::testing::wait_until;
using Outcome = wire::NodeFinished::Outcome;
using std::chrono::steady_clock;

namespace {

// Ranks that live until they are ended, as `exec`ed children too.
const std::string kForever = "mkfifo f$RANK; echo $$ >up$RANK; read x <f$RANK";

char state_of(pid_t pid) {
  const auto stat = process_stat(pid);
  return stat ? stat->state : '?';
}

// Whether the timer of a supervisor's lease has run out and nobody has heard of it yet: of its
// timers it alone counts the time asleep.
bool lease_is_over(pid_t supervisor) {
  const fs::path infos = "/proc/" + std::to_string(supervisor) + "/fdinfo";
  for (const fs::directory_entry& entry : fs::directory_iterator(infos)) {
    const std::string info = read_file_if_there(entry.path()).value_or("");
    if (info.find("clockid: " + std::to_string(CLOCK_BOOTTIME) + "\n") == info.npos) continue;
    return info.find("ticks: 0\n") == info.npos;
  }
  return false;
}

}  // namespace

TEST_CASE("the first rank that fails is told first, the others are stopped at once") {
  Driver driver;
  driver.spec.stop_grace = std::chrono::hours(1);  // which nothing here waits for
  driver.shell(
      "if [ $RANK = 1 ]; then until [ -e up0 ]; do :; done; "
      "echo why >&2; exit 3; fi; " +
          kForever,
      3);
  driver.start_and_connect();
  const auto first = driver.until<wire::RankExited>();
  CHECK(first.rank == 1);
  CHECK(first.exit == ProcessExit{3, 0});
  CHECK_FALSE(first.stopped);
  CHECK(first.last_lines == std::vector<std::string>{"why"});
  for (int i = 0; i < 2; ++i) {
    const auto other = driver.until<wire::RankExited>();
    CHECK(other.stopped);
    CHECK(other.exit.signal == SIGTERM);
  }
  const auto finished = driver.finish();
  CHECK(finished.outcome == Outcome::failed);
  CHECK(finished.reason == "rank 1 on node-0: exit code 3");
}

TEST_CASE("of ranks that are found dead in one look each has failed by itself") {
  Driver driver;
  driver.shell(kForever, 3);
  driver.start_and_connect();
  const auto started = driver.until<wire::RanksStarted>();
  for (int rank = 0; rank < 3; ++rank) driver.wait_for_line("work/up" + std::to_string(rank));
  ::kill(driver.supervisor(), SIGSTOP);
  wait_until("the supervisor stands", [&] { return state_of(driver.supervisor()) == 'T'; });
  for (const int rank : {1, 0}) {
    const pid_t pid = started.ranks[static_cast<std::size_t>(rank)].pid;
    ::kill(pid, SIGKILL);
    wait_until("a rank has ended", [&] { return state_of(pid) == 'Z'; });
  }
  ::kill(driver.supervisor(), SIGCONT);
  for (int i = 0; i < 3; ++i) {
    const auto exited = driver.until<wire::RankExited>();
    CAPTURE(exited.rank);
    CHECK(exited.stopped == (exited.rank == 2));
    CHECK(exited.exit.signal == (exited.rank == 2 ? SIGTERM : SIGKILL));
  }
  CHECK(driver.finish().outcome == Outcome::failed);
}

TEST_CASE("a rank killed by a signal, and torchrun's error file") {
  Driver driver;
  driver.shell(
      R"(printf '{"message":{"message":"RuntimeError: nan","extraInfo":{"timestamp":"1767323045"}}}' )"
      R"(>$TORCHELASTIC_ERROR_FILE; kill -SEGV $$)");
  driver.start_and_connect();
  const auto exited = driver.until<wire::RankExited>();
  CHECK(exited.exit.signal == SIGSEGV);
  CHECK(exited.error_message == "RuntimeError: nan");
  CHECK(exited.error_time == 1767323045);
  CHECK(driver.finish().reason == "rank 0 on node-0: signal 11 (SIGSEGV)");
}

TEST_CASE("address in use is seen on rank 0 alone") {
  Driver driver;
  driver.shell(
      "if [ $RANK = 0 ]; then echo 'EADDRINUSE: Address already in use' >&2; exit 1; fi; " +
          kForever,
      2);
  driver.start_and_connect();
  CHECK(driver.until<wire::RankExited>().address_in_use);
  CHECK_FALSE(driver.until<wire::RankExited>().address_in_use);
  driver.finish();
}

TEST_CASE("a shared library that is missing is the cause") {
  Driver driver;
  driver.shell(
      "echo './x: error while loading shared libraries: liby.so: cannot open shared object file: "
      "No "
      "such file or directory' >&2; exit 127");
  driver.start_and_connect();
  CHECK(driver.until<wire::RankExited>().cause == "its shared library liby.so is missing");
  driver.finish();
}

TEST_CASE("a rank that ends well early does not end the others") {
  Driver driver;
  driver.shell("if [ $RANK = 1 ]; then exit 0; fi; " + kForever, 2);
  driver.start_and_connect();
  CHECK(driver.until<wire::RankExited>().rank == 1);
  driver.wait_for_line("work/up0");
  write_all(open_file(driver.spec.workdir + "/f0", O_RDWR).get(), "\n");
  CHECK(driver.finish().outcome == Outcome::succeeded);
}

TEST_CASE("stop ends the whole tree: children, setsid grandchildren that ignore SIGTERM") {
  Driver driver;
  driver.spec.stop_grace = std::chrono::seconds(0);
  driver.shell(
      "setsid sh -c 'trap \"\" TERM HUP; echo $$ >stubborn; while :; do sleep 1000; done' & "
      "env -i setsid sh -c 'trap \"\" TERM; echo $$ >hidden; while :; do sleep 1000; done' & " +
      kForever);
  driver.start_and_connect();
  const pid_t stubborn = std::stoi(driver.wait_for_line("work/stubborn"));
  const pid_t hidden = std::stoi(driver.wait_for_line("work/hidden"));
  driver.wait_for_line("work/up0");
  driver.send(wire::StopRanks{std::nullopt, "by ada"});
  const auto exited = driver.until<wire::RankExited>();
  CHECK(exited.stopped);
  const auto finished = driver.finish();
  CHECK(finished.outcome == Outcome::stopped);
  CHECK(finished.reason == "by ada");
  CHECK(gone(stubborn));
  CHECK(gone(hidden));  // it carried no token
}

TEST_CASE("a stopped rank has its grace: it may end by itself, or it is killed") {
  Driver driver;
  driver.shell("trap 'echo saving; exit 0' TERM; mkfifo f; echo up >up; read x <f; exit 5");
  SUBCASE("it ends by itself") {
    driver.start_and_connect();
    driver.wait_for_line("work/up");
    driver.send(wire::StopRanks{});
    const auto exited = driver.until<wire::RankExited>();
    CHECK(exited.exit.ok());
    CHECK(exited.stopped);
    CHECK(driver.finish().outcome == Outcome::stopped);
    CHECK(driver.out(0) == "saving\n");
  }
  SUBCASE("it is frozen by SIGSTOP: SIGCONT lets it act") {
    driver.start_and_connect();
    driver.wait_for_line("work/up");
    const pid_t pid = std::get<wire::RanksStarted>([&] {
                        driver.until<wire::RanksStarted>();
                        return driver.seen.back().body;
                      }())
                          .ranks[0]
                          .pid;
    ::kill(pid, SIGSTOP);
    driver.send(wire::StopRanks{});
    CHECK(driver.finish().outcome == Outcome::stopped);
    CHECK(driver.out(0) == "saving\n");
  }
  SUBCASE("a second stop makes the grace shorter") {
    driver.shell("trap '' TERM; mkfifo f; echo up >up; read x <f; read x <f");
    driver.spec.stop_grace = std::chrono::hours(1);
    driver.start_and_connect();
    driver.wait_for_line("work/up");
    driver.send(wire::StopRanks{std::nullopt, "first"});
    driver.send(wire::StopRanks{std::chrono::seconds(0), "second"});
    CHECK(driver.until<wire::RankExited>().exit.signal == SIGKILL);
    CHECK(driver.finish().reason == "first");
  }
}

TEST_CASE("what ranks that succeeded leave behind is ended within a second") {
  Driver driver;
  driver.shell(
      "setsid sh -c 'trap \"\" TERM; echo $$ >left; while :; do sleep 1000; done' & "
      "until [ -s left ]; do :; done; echo done");
  driver.start_and_connect();
  const pid_t left = std::stoi(driver.wait_for_line("work/left"));
  const auto exited = driver.until<wire::RankExited>();  // though the pipe is still held
  CHECK(exited.exit.ok());
  CHECK_FALSE(exited.stopped);
  CHECK(driver.finish().outcome == Outcome::succeeded);
  CHECK(gone(left));
  CHECK(driver.out(0) == "done\n");
}

TEST_CASE("a stop that races with the end gives one end") {
  for (int i = 0; i < 20; ++i) {
    Driver driver;
    driver.shell("echo up >up");
    driver.start_and_connect();
    driver.wait_for_line("work/up");
    driver.send(wire::StopRanks{});
    driver.finish();
    const auto ends = std::count_if(driver.seen.begin(), driver.seen.end(), [](const auto& event) {
      return std::holds_alternative<wire::NodeFinished>(event.body);
    });
    CHECK(ends == 1);
  }
}

TEST_CASE("a stop during setup") {
  Driver driver;
  driver.spec.setup = "mkfifo f; echo up >up; read x <f";
  driver.shell("echo never");
  driver.start_and_connect();
  driver.wait_for_line("work/up");
  driver.send(wire::StopRanks{});
  CHECK(driver.finish().outcome == Outcome::stopped);
  CHECK_FALSE(fs::exists(driver.root.out(0)));
}

TEST_CASE("SIGTERM to the supervisor is a stop") {
  Driver driver;
  driver.shell(kForever);
  driver.start_and_connect();
  driver.wait_for_line("work/up0");
  ::kill(driver.supervisor(), SIGTERM);
  const auto finished = driver.finish();
  CHECK(finished.outcome == Outcome::stopped);
  CHECK(finished.reason.find("SIGTERM") != std::string::npos);
}

TEST_CASE("SIGTERM to all of a step: the node agent's word is waited for, and has an end") {
  for (const bool word : {true, false}) {
    Driver driver;
    driver.env.emplace_back("SLURM_JOB_ID=1");
    driver.shell("trap 'exit 0' TERM; echo $$ >up; while :; do sleep 0.01; done");
    driver.start_and_connect();
    const pid_t rank = std::stoi(driver.wait_for_line("work/up"));
    ::kill(driver.supervisor(), SIGTERM);
    ::kill(rank, SIGTERM);
    wait_until("the rank has ended", [&] {
      std::error_code none;
      return !fs::exists("/proc/" + std::to_string(rank) + "/exe", none);
    });
    // Late: the machine is busy.
    if (word) driver.send(wire::StopRanks{std::nullopt, "node-0 leaves"});
    CHECK(driver.until<wire::RankExited>().stopped);
    const auto finished = driver.finish();
    CHECK(finished.outcome == Outcome::stopped);
    CHECK(finished.reason ==
          (word ? "node-0 leaves" : "the supervisor was told to stop by SIGTERM"));
  }
}

TEST_CASE("kill -9 of the supervisor: ranks die by themselves, clean_after ends the rest") {
  Driver driver;
  driver.shell(
      "setsid sh -c 'trap \"\" TERM; echo $$ >left; while :; do sleep 1000; done' & " + kForever,
      2);
  driver.start_and_connect();
  const auto started = driver.until<wire::RanksStarted>();
  driver.wait_for_line("work/up0");
  driver.wait_for_line("work/up1");
  const pid_t left = std::stoi(driver.wait_for_line("work/left"));
  CHECK_FALSE(supervise::AttemptLock::take(driver.root));  // it lives
  driver.kill_supervisor();
  for (const auto& rank : started.ranks) {
    wait_until("the ranks' death", [&] { return gone(rank.pid); });
  }
  CHECK_FALSE(gone(left));
  // What it left does not hold the lock.
  const auto lock = supervise::AttemptLock::take(driver.root);
  REQUIRE(lock.has_value());
  write_file_atomic(driver.root.secrets(), "{}", 0600);  // killed before it took them
  CHECK(supervise::clean_after(driver.root, *lock).empty());
  CHECK_FALSE(fs::exists(driver.root.secrets()));
  CHECK(gone(left));
  CHECK(driver.carriers().empty());
  CHECK_FALSE(supervise::read_exit(driver.root).has_value());
  CHECK_FALSE(fs::exists(paths::supervisor_socket(driver.node.root, driver.spec.job, 1)));
}

TEST_CASE("leases") {
  Driver driver;
  driver.spec.lease = std::chrono::milliseconds(500);
  SUBCASE("on_head_lost stop: the ranks are gone before the lease is over") {
    driver.spec.on_head_lost = OnHeadLost::stop;
    driver.spec.stop_grace = std::chrono::hours(1);  // longer than the lease: not waited for
    driver.shell("trap '' TERM; " + kForever);
    driver.start_and_connect();
    const auto exited = driver.until<wire::RankExited>();
    CHECK(exited.stopped);
    const auto finished = driver.finish();
    CHECK(finished.outcome == Outcome::failed);
    CHECK(finished.reason.find("the head was not heard for 400 ms") == 0);
  }
  SUBCASE("renewed in time, they go on") {
    driver.spec.on_head_lost = OnHeadLost::stop;
    // Longer than a busy machine lets anyone wait between two renewals.
    driver.spec.lease = std::chrono::seconds(10);
    driver.shell(kForever);
    driver.start_and_connect();
    const auto until = steady_clock::now() + driver.spec.lease + std::chrono::seconds(1);
    while (steady_clock::now() < until) {
      driver.send(wire::RenewLease{});
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    driver.wait_for_line("work/up0");
    driver.send(wire::StopRanks{});
    CHECK(driver.finish().outcome == Outcome::stopped);
  }
  SUBCASE("a supervisor that stood meanwhile hears of the renewal first: they go on") {
    driver.spec.on_head_lost = OnHeadLost::stop;
    driver.spec.lease = std::chrono::seconds(10);
    driver.shell(kForever);
    driver.start_and_connect();
    driver.wait_for_line("work/up0");
    const UniqueFd rank0 = driver.report_connection(0);
    ::kill(driver.supervisor(), SIGSTOP);
    wait_until("the supervisor stands", [&] { return state_of(driver.supervisor()) == 'T'; });
    driver.send(wire::RenewLease{});
    wait_until("the end of the lease's timer", [&] { return lease_is_over(driver.supervisor()); });
    // Answered once it has looked at all that was there before.
    write_all(rank0.get(), "{\"type\":\"heartbeat\",\"ack\":true}\n");
    ::kill(driver.supervisor(), SIGCONT);
    CHECK(testing::LineReader(rank0.get()).next() == R"({"ok":true})");
    driver.send(wire::StopRanks{});
    CHECK(driver.finish().outcome == Outcome::stopped);
  }
  SUBCASE("on_head_lost continue: nothing happens") {
    driver.spec.lease = std::chrono::milliseconds(1);
    driver.shell(kForever);
    driver.start_and_connect();
    driver.wait_for_line("work/up0");
    driver.send(wire::StopRanks{});
    CHECK(driver.finish().outcome == Outcome::stopped);
  }
}

TEST_CASE("any bytes are kept as they are") {
  Driver driver;
  SUBCASE("10 MB without a newline, binary, no newline at the end") {
    driver.shell(
        "head -c 10000000 /dev/zero | tr '\\0' 'x'; printf '\\377\\000\\r\\033[31mred'; "
        "printf 'a\\rb\\rlast \\033[0m' >&2; exit 1");
    driver.start_and_connect();
    const auto exited = driver.until<wire::RankExited>();
    CHECK(exited.last_lines == std::vector<std::string>{"last \\x1b[0m"});
    driver.finish();
    const std::string out = driver.out(0);
    CHECK(out.size() == 10000011);
    CHECK(out.substr(9999999) == std::string("x\377\0\r\033[31mred", 12));
  }
  SUBCASE("100 MB from two ranks and both streams") {
    driver.shell("head -c 50000000 /dev/zero & head -c 50000000 /dev/zero >&2; wait", 2);
    driver.start_and_connect();
    CHECK(driver.finish().outcome == Outcome::succeeded);
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(fs::file_size(driver.root.out(rank)) == 50000000);
      CHECK(fs::file_size(driver.root.err(rank)) == 50000000);
    }
  }
}

TEST_CASE("a full disk loses output, counted, and no rank") {
  Driver driver;
  fs::create_directories(driver.root.ranks());
  if (::mount("tmpfs", driver.root.ranks().c_str(), "tmpfs", 0, "size=64k") != 0) {
    MESSAGE("skipped: a small tmpfs cannot be mounted here");
    return;
  }
  driver.shell("head -c 3000000 /dev/zero; echo fine >&2; echo ended >ended");
  driver.start_and_connect();
  const auto finished = driver.finish();
  CHECK(finished.outcome == Outcome::succeeded);
  CHECK(driver.wait_for_line("work/ended") == "ended");
  CHECK(finished.dropped_bytes + fs::file_size(driver.root.out(0)) +
            fs::file_size(driver.root.err(0)) ==
        3000005);
  std::vector<std::string> warnings;
  for (const auto& event : driver.seen) {
    if (const auto* warning = std::get_if<wire::AttemptWarning>(&event.body)) {
      warnings.push_back(warning->message);
    }
  }
  REQUIRE(warnings.size() == 2);
  CHECK(warnings[0].find("No space left") != std::string::npos);
  CHECK(warnings[1].find(std::to_string(finished.dropped_bytes)) != std::string::npos);
  ::umount2(driver.root.ranks().c_str(), MNT_DETACH);
}
