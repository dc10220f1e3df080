// A real supervisor from the start of its ranks to their end.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <map>

#include "agent/supervise/environment.hpp"
#include "agent/supervise/setup_mark.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/unix_socket.hpp"
#include "tests/agent/supervise/driver.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::Driver;
using dtrain::testing::wait_until;
using Outcome = wire::NodeFinished::Outcome;

TEST_CASE("events come in order, numbered from 1, and the supervisor goes when all is heard") {
  Driver driver;
  driver.shell("echo out $RANK; echo err $RANK >&2", 2);
  driver.start_and_connect();
  const auto finished = driver.finish();
  CHECK(finished.outcome == Outcome::succeeded);
  CHECK(finished.reason.empty());
  CHECK(finished.unkillable.empty());
  REQUIRE(driver.seen.size() == 5);
  for (std::size_t i = 0; i < driver.seen.size(); ++i) CHECK(driver.seen[i].seq == i + 1);
  CHECK(std::get<wire::MasterReady>(driver.seen[0].body).port > 0);
  CHECK(std::get<wire::RanksStarted>(driver.seen[1].body).ranks.size() == 2);
  CHECK(std::get<wire::RankExited>(driver.seen[2].body).exit.ok());
  CHECK(std::get<wire::RankExited>(driver.seen[3].body).exit.ok());
  CHECK(driver.out(0) == "out 0\n");
  CHECK(driver.err(1) == "err 1\n");
}

TEST_CASE("what it leaves behind: exit.json for readers, 0600, and no secrets.json") {
  Driver driver;
  driver.secrets = {{"KEY", "hidden-value"}};
  driver.shell("test \"$KEY\" = hidden\"\"-value");
  driver.start_and_connect();
  CHECK(driver.finish().outcome == Outcome::succeeded);
  const auto record = supervise::read_exit(driver.root);
  REQUIRE(record.has_value());
  CHECK(record->finished.outcome == Outcome::succeeded);
  CHECK(record->events.size() == driver.seen.size());
  CHECK(record->events.back().seq == driver.seen.back().seq);
  struct stat status {};
  REQUIRE(::stat(driver.root.exit().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  CHECK_FALSE(fs::exists(driver.root.secrets()));
  for (const auto& entry : fs::recursive_directory_iterator(driver.node.root)) {
    if (entry.is_regular_file()) {
      CHECK(read_file(entry.path()).find("hidden-value") == std::string::npos);
    }
  }
}

TEST_CASE("each rank has its own environment") {
  Driver driver;
  driver.spec.env = {{"MINE", "yes"}, {"RANK", "99"}};
  driver.shell("env -0", 2);
  driver.spec.first_rank = 2;
  driver.spec.world_size = 4;
  driver.spec.nnodes = 2;
  driver.spec.node_rank = 1;
  driver.spec.master_port = 12345;
  driver.start_and_connect();
  CHECK(driver.finish().outcome == Outcome::succeeded);
  auto env = supervise::parse_environment(driver.out(3));
  CHECK(env["RANK"] == "3");
  CHECK(env["LOCAL_RANK"] == "1");
  CHECK(env["MASTER_PORT"] == "12345");
  CHECK(env["MINE"] == "yes");
  CHECK(env["HOME"] == "/tmp");
  CHECK(env["OMP_NUM_THREADS"] == "1");
  CHECK(env.count("DTRAIN_MASTER_LISTEN_FD") == 0);
}

TEST_CASE("rank 0 inherits the bound master port, which others cannot take") {
  Driver driver;
  driver.shell(
      "echo $MASTER_PORT $DTRAIN_MASTER_LISTEN_FD; "
      "readlink /proc/self/fd/$DTRAIN_MASTER_LISTEN_FD; mkfifo f; read x <f; true",
      2);
  driver.start_and_connect();
  const int port = driver.until<wire::MasterReady>().port;
  const UniqueFd other(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const auto bind_it = [&] {
    return ::bind(other.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  };
  CHECK(bind_it() != 0);
  const int on = 1;
  ::setsockopt(other.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  CHECK(bind_it() == 0);
  wait_until("rank 0's line", [&] {
    return read_file_if_there(driver.root.out(0)).value_or("").find("socket:") != std::string::npos;
  });
  CHECK(driver.out(0).find(std::to_string(port) + " 127") == 0);
  driver.send(wire::StopRanks{});
  CHECK(driver.finish().outcome == Outcome::stopped);
}

TEST_CASE("setup runs once before the ranks") {
  Driver driver;
  driver.spec.setup = "echo ${RANK-none} $WORLD_SIZE; echo x >>made";
  driver.shell("cat made", 2);
  driver.start_and_connect();
  CHECK(driver.finish().outcome == Outcome::succeeded);
  CHECK(std::holds_alternative<wire::SetupStarted>(driver.seen[1].body));
  CHECK(std::holds_alternative<wire::RanksStarted>(driver.seen[2].body));
  CHECK(read_file(driver.root.setup_log()) == "none 2\n");
  CHECK(driver.out(1) == "x\n");
}

TEST_CASE("a setup that leaves a server running does not hold the ranks up") {
  Driver driver;
  driver.spec.setup = "sleep 1000 & echo started";
  driver.shell("echo rank");
  driver.start_and_connect();
  CHECK(driver.finish().outcome == Outcome::succeeded);
  CHECK(driver.out(0) == "rank\n");
}

TEST_CASE("a setup that fails fails the attempt, with its code and last line") {
  Driver driver;
  driver.spec.setup = "echo first; echo cannot make it >&2; exit 7";
  driver.shell("echo never");
  driver.start_and_connect();
  const auto finished = driver.finish();
  CHECK(finished.outcome == Outcome::failed);
  CHECK(finished.reason == "setup on node-0: exit code 7: cannot make it");
  CHECK_FALSE(fs::exists(driver.root.out(0)));
}

TEST_CASE("programs: by PATH of the rank, relative to workdir, and not to be found") {
  Driver driver;
  SUBCASE("by PATH, from the job's env") {
    fs::create_directory(driver.file("bin"));
    write_file_atomic(driver.file("bin/prog"), "#!/bin/sh\necho found \"$1\"\n", 0755);
    driver.spec.env["PATH"] = driver.file("bin").string() + ":/bin";
    driver.spec.command = {"prog", "a b"};
    driver.start_and_connect();
    CHECK(driver.finish().outcome == Outcome::succeeded);
    CHECK(driver.out(0) == "found a b\n");
  }
  SUBCASE("with a slash") {
    write_file_atomic(driver.spec.workdir + "/prog", "#!/bin/sh\npwd\n", 0755);
    driver.spec.command = {"./prog"};
    driver.start_and_connect();
    CHECK(driver.finish().outcome == Outcome::succeeded);
    CHECK(driver.out(0) == driver.spec.workdir + "\n");
  }
  SUBCASE("missing") {
    driver.spec.command = {"./missing"};
    driver.start_and_connect();
    const auto finished = driver.finish();
    CHECK(finished.outcome == Outcome::failed);
    CHECK(finished.reason.find("./missing") != std::string::npos);
    CHECK(finished.reason.find("node-0") != std::string::npos);
    CHECK(finished.lasting);
    CHECK(finished.reason.find(driver.spec.workdir) != std::string::npos);
  }
  SUBCASE("not executable") {
    write_file_atomic(driver.spec.workdir + "/prog", "x", 0644);
    driver.spec.command = {"./prog"};
    driver.start_and_connect();
    CHECK(driver.finish().reason.find("not executable") != std::string::npos);
  }
  SUBCASE("no folder") {
    driver.spec.workdir += "/gone";
    driver.start_and_connect();
    const auto finished = driver.finish();
    CHECK(finished.outcome == Outcome::failed);
    CHECK(finished.reason.find("/gone") != std::string::npos);
  }
}

TEST_CASE("setup runs once: the next attempt finds what it has made") {
  Driver driver;
  const paths::NodeRoot& node = driver.node;
  const JobId job = driver.spec.job;
  const int attempt = driver.spec.attempt;
  driver.spec.setup = "echo made >>made";
  SUBCASE("it is marked") {
    driver.shell("cat made");
    driver.start_and_connect();
    CHECK(driver.finish().outcome == Outcome::succeeded);
    CHECK(supervise::setup_has_run(node, job, attempt, false));
    CHECK(supervise::setup_has_run(node, job, attempt + 1, true));
    CHECK_FALSE(supervise::setup_has_run(node, job, attempt + 1, false));
  }
  SUBCASE("it has run already") {
    make_folders(node.jobs() / job.str());
    supervise::mark_setup(node, job, 1);
    driver.shell("test ! -e made");
    driver.start_and_connect();
    CHECK(driver.finish().outcome == Outcome::succeeded);
  }
  SUBCASE("it left a process, which ends with the attempt") {
    driver.spec.setup = "sleep 1000 >/dev/null 2>&1 &";
    driver.shell("true");
    driver.start_and_connect();
    CHECK(driver.finish().outcome == Outcome::succeeded);
    CHECK_FALSE(supervise::setup_has_run(node, job, attempt, true));
  }
}

TEST_CASE("the folder of a setup becomes that of the next attempt, unless there is one") {
  const testing::TemporaryFolder folder;
  const paths::NodeRoot node{folder.path()};
  const JobId job("j-abcdef");
  supervise::hand_on_workdir(node, job, 2);  // nothing is there
  make_folders(node.workdir(job, 1));
  write_file_atomic(node.workdir(job, 1) / "built", "");
  supervise::mark_setup(node, job, 1);
  supervise::hand_on_workdir(node, job, 3);
  CHECK(fs::exists(node.workdir(job, 3) / "built"));
  CHECK_FALSE(fs::exists(node.workdir(job, 1)));
  CHECK(supervise::setup_has_run(node, job, 3, false));
  make_folders(node.workdir(job, 4));
  supervise::hand_on_workdir(node, job, 4);
  CHECK_FALSE(supervise::setup_has_run(node, job, 4, false));
  write_file_atomic(node.jobs() / job.str() / "setup.json",
                    R"({"attempt": 3, "boot_id": "another"})");
  CHECK_FALSE(supervise::setup_has_run(node, job, 3, false));
}

TEST_CASE("events wait for a client, and what is not acknowledged is sent again") {
  Driver driver;
  driver.shell("mkfifo f; echo up >up; read x <f");
  driver.start();
  driver.wait_for_line("work/up");  // without any client
  driver.connect();
  driver.until<wire::RanksStarted>();
  driver.ack(1);
  // Lines are taken in order: once the wrong one has ended the connection, the right one counted.
  driver.send_raw("nonsense\n");
  CHECK(driver.closed_by_peer());
  driver.connect();
  CHECK(driver.next().seq == 2);
  SUBCASE("a new client takes the place of the one before") {
    auto second = connect_unix(
        paths::supervisor_socket(driver.node.root, driver.spec.job, driver.spec.attempt));
    REQUIRE(second.has_value());
    CHECK(driver.closed_by_peer());
    driver.connect();
    CHECK(driver.next().seq == 2);
  }
  SUBCASE("what a client sends wrong ends its connection and nothing more") {
    for (const std::string& wrong :
         {std::string("nonsense\n"), std::string("{\"type\":\"ack\",\"seq\":99}\n"),
          std::string("{\"type\":\"dance\"}\n"), std::string(3 << 20, 'x'), std::string("[\n"),
          std::string("\n"), std::string("{\"type\":\"stop\",\"grace_s\":-1}\n")}) {
      driver.send_raw(wrong);
      CHECK(driver.closed_by_peer());
      driver.connect();
      CHECK(driver.next().seq == 2);
    }
  }
  // Opening for both keeps open from waiting for a reader.
  write_all(open_file(driver.spec.workdir + "/f", O_RDWR).get(), "\n");
  CHECK(driver.finish().outcome == Outcome::succeeded);
}

TEST_CASE("sockets that are taken away are made again, and who is there stays") {
  Driver driver;
  driver.shell("mkfifo f; read x <f; true");
  driver.start_and_connect();
  driver.until<wire::RanksStarted>();
  const fs::path control = paths::supervisor_socket(driver.node.root, driver.spec.job, 1);
  const UniqueFd before = driver.report_connection(0);
  const fs::path away = control.parent_path().string() + ".away";
  fs::rename(control.parent_path(), away);
  remove_tree(away);
  wait_until("the supervisor's socket", [&] { return fs::exists(control); });
  // Who came before is heard as before, and others may come again.
  const auto reports = [&](const UniqueFd& rank, int step) {
    write_all(rank.get(), "{\"type\":\"metrics\",\"step\":" + std::to_string(step) +
                              ",\"metrics\":{\"loss\":0.5}}\n");
    return driver.until<wire::RankReport>().body["step"] == step;
  };
  CHECK(reports(before, 1));
  const UniqueFd after = driver.report_connection(0);
  CHECK(reports(after, 2));
  driver.disconnect();
  driver.connect();
  driver.send(wire::StopRanks{});
  CHECK(driver.finish().outcome == Outcome::stopped);
}

TEST_CASE("without a client it lingers, then goes; exit.json says it all") {
  Driver driver;
  driver.linger_ms = 1;
  driver.shell("echo last >&2; exit 3");
  driver.start();
  CHECK(driver.wait_exit() == 0);
  CHECK(supervise::AttemptLock::take(driver.root));
  const auto record = supervise::read_exit(driver.root);
  REQUIRE(record.has_value());
  CHECK(record->finished.outcome == Outcome::failed);
  CHECK(record->finished.reason == "rank 0 on node-0: exit code 3");
  const auto& exited = std::get<wire::RankExited>(record->events[2].body);
  CHECK(exited.last_lines == std::vector<std::string>{"last"});
}

TEST_CASE("an attempt is supervised once") {
  Driver driver;
  driver.shell("mkfifo f; read x <f");
  driver.start_and_connect();
  driver.until<wire::RanksStarted>();
  CHECK_FALSE(supervise::AttemptLock::take(driver.root));
  const auto record = nlohmann::json::parse(read_file(driver.root.supervisor()));
  CHECK(record["pid"] == driver.supervisor());
  SpawnOptions options;
  options.argv = {SUPERVISE_PROCESS, driver.node.root.string(), driver.spec.job.str(), "1", "1"};
  CHECK(wait(spawn(options)).code == 1);
  driver.send(wire::StopRanks{});
  driver.finish();
  CHECK(wait(spawn(options)).code == 1);  // nor again after its end
}

TEST_CASE("a spec that cannot be read is recorded as the attempt's end") {
  Driver driver;
  driver.spec.attempt = 1;
  driver.start();
  driver.kill_supervisor();
  fs::remove(driver.root.exit());
  write_file_atomic(driver.root.spec(), "{\"version\":1}");
  SpawnOptions options;
  options.argv = {SUPERVISE_PROCESS, driver.node.root.string(), driver.spec.job.str(), "1", "1"};
  // A rank that was just being started may have the dead one's lock for a moment.
  std::optional<supervise::FinishedRecord> record;
  const auto deadline = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
  while (!record && std::chrono::steady_clock::now() < deadline) {
    CHECK(wait(spawn(options)).code == 1);
    record = supervise::read_exit(driver.root);
  }
  REQUIRE(record.has_value());
  CHECK(record->finished.outcome == Outcome::failed);
  CHECK(record->finished.reason.find("spec.json") != std::string::npos);
}
