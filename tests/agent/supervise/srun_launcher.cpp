// Ranks that are tasks of srun: real supervisors and real tasks, and a srun that asks this program
// for its tasks, since they are no children of srun's.

#include "agent/supervise/srun_launcher.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "agent/supervise/task.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/pipe.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/program.hpp"
#include "launcher/core/text.hpp"
#include "launcher/core/unix_socket.hpp"
#include "tests/agent/supervise/driver.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::Driver;
using dtrain::testing::gone;
using dtrain::testing::wait_until;
using Outcome = wire::NodeFinished::Outcome;

namespace {

// What srun is, for supervisors that have its folder in their PATH.
class FakeSrun {
 public:
  // `script` is what it does once it has noted how it was started.
  explicit FakeSrun(const std::string& script = "") {
    REQUIRE(::mkfifo((folder_ / "out").c_str(), 0600) == 0);
    // Both ends: it waits for nobody, and does not end with the tasks that there are.
    out_ = open_file(folder_ / "out", O_RDWR);
    const std::string at = folder_.path().string();
    write_file_atomic(folder_ / "srun",
                      "#!/bin/sh\ncd '" + at + "'\nsleep 1000 &\necho $! >child\n" +
                          "env -0 >env\nprintf '%s\\n' \"$@\" >new && mv new args\necho $$ >pid\n" +
                          (script.empty() ? "exec cat out\n" : script),
                      0700);
  }
  ~FakeSrun() {
    for (const auto& [rank, pid] : tasks_) {
      ::kill(pid, SIGKILL);
      if (!reaped_.contains(rank)) wait(pid);
    }
    for (const char* name : {"pid", "child"}) {
      if (const auto text = read_file_if_there(folder_ / name)) ::kill(std::stoi(*text), SIGKILL);
    }
  }

  void serve(Driver& driver) const {
    std::erase_if(driver.env, [](const std::string& e) { return e.starts_with("PATH="); });
    driver.env.push_back("PATH=" + folder_.path().string() + ":/usr/bin:/bin");
    driver.env.emplace_back("SLURM_NTASKS=9");
    driver.env.emplace_back("SLURM_CONF=/conf");
  }

  // Slurm starts the task of a rank.
  void start(int rank, const std::vector<std::string>& more = {}, int out = -1) {
    wait_until("srun", [this] { return fs::exists(folder_ / "pid"); });
    SpawnOptions options;
    options.argv = {SUPERVISE_PROCESS, "task"};
    options.env = {"SLURM_PROCID=" + std::to_string(rank), "PMIX_RANK=" + std::to_string(rank),
                   "PMIX_NAMESPACE=slurm.7", "HOME=/elsewhere", "OF_A_PLUGIN=yes"};
    options.env.push_back(
        std::string(supervise::kLaunch) + "=" +
        supervise::parse_environment(read_file(folder_ / "env")).at(supervise::kLaunch));
    options.env.insert(options.env.end(), more.begin(), more.end());
    options.stdout_fd = out < 0 ? out_.get() : out;
    options.new_session = true;
    tasks_[rank] = spawn(options);
  }
  void end(int rank) { ::kill(tasks_.at(rank), SIGKILL); }
  int exit_code(int rank) {
    reaped_.insert(rank);
    return wait(tasks_.at(rank)).shell_code();
  }
  std::string args() const { return read_file(folder_ / "args"); }
  bool over() const {
    const auto has_ended = [this](const char* name) {
      return gone(std::stoi(read_file(folder_ / name)));
    };
    return has_ended("pid") && has_ended("child");
  }
  pid_t pid() const { return std::stoi(read_file(folder_ / "pid")); }
  bool was_started() const { return fs::exists(folder_ / "pid"); }

 private:
  testing::TemporaryFolder folder_;
  UniqueFd out_;
  std::map<int, pid_t> tasks_;
  std::set<int> reaped_;
};

wire::SrunStep step_of(const std::vector<int>& nprocs) {
  wire::SrunStep step;
  step.job = "7";
  step.secret = random_hex(16);
  for (const int nproc : nprocs) {
    step.nodes.push_back({"n" + std::to_string(step.nodes.size() + 1), nproc});
  }
  return step;
}

// Its part of an attempt with one rank on each of two nodes.
void be_one_of_two(Driver& driver, const wire::SrunStep& step, int node_rank) {
  driver.spec.srun = step;
  driver.spec.node = NodeId("node-" + std::to_string(node_rank));
  driver.spec.node_rank = driver.spec.first_rank = node_rank;
  driver.spec.nnodes = driver.spec.world_size = 2;
  driver.spec.master_port = node_rank == 0 ? 0 : 12345;
}

}  // namespace

TEST_CASE("srun: how it is asked") {
  wire::AttemptSpec spec;
  spec.job = JobId("mnist-abcdef");
  spec.world_size = 3;
  spec.srun = step_of({2, 1});
  const std::string asked = join(supervise::srun_command(spec, "/agents/dtrain-agent"), " ");
  CHECK(asked.starts_with("srun --quiet --jobid=7 --job-name=mnist-abcdef --overlap "));
  CHECK(asked.find(" --distribution=arbitrary --ntasks=3 --mpi=pmix ") != std::string::npos);
  CHECK(
      asked.ends_with(" --export=DTRAIN_LAUNCH --chdir=/ --input=none /agents/dtrain-agent task"));
  CHECK(supervise::srun_hosts(*spec.srun) == "n1\nn1\nn2\n");
  const std::vector<std::string> env{"PATH=/bin",     "SLURM_NTASKS=2",   "SLURMD_NODENAME=n1",
                                     "SLURM_CONF=/c", "PMIX_RANK=1",      "DTRAIN_CONTAINED=1",
                                     "PMI_RANK=1",    "OMP_NUM_THREADS=4"};
  CHECK(supervise::srun_environment(env, spec, "/hosts") ==
        std::vector<std::string>{"PATH=/bin", "SLURM_CONF=/c", "OMP_NUM_THREADS=4",
                                 "DTRAIN_LAUNCH=" + spec.srun->secret + " 0 2",
                                 "SLURM_HOSTFILE=/hosts"});
  spec.env["SLURM_MPI_TYPE"] = "pmix_v4";
  CHECK(join(supervise::srun_command(spec, "/a"), " ").find(" --mpi=pmix_v4 ") !=
        std::string::npos);
  spec.env["SLURM_MPI_TYPE"] = "pmi2";
  CHECK_THROWS_AS(supervise::srun_command(spec, "/a"), NotStartable);
}

TEST_CASE("srun: each rank has what its task was given, and the task its exit code") {
  FakeSrun srun;
  Driver driver;
  driver.spec.srun = step_of({2});
  driver.spec.env = {{"PMIX_NAMESPACE", "mine"}};
  // The failure of one ends the other, which is to have said its line by then.
  const std::string said = shell_quote(driver.spec.workdir + "/said.");
  driver.shell("echo $RANK $PMIX_RANK $PMIX_NAMESPACE $OF_A_PLUGIN $HOME; >" + said +
                   "$RANK; until [ -e " + said + "0 ]; do sleep 0.01; done; exit $((RANK * 7))",
               2);
  srun.serve(driver);
  driver.start_and_connect();
  srun.start(1);
  srun.start(0);
  const auto finished = driver.finish();
  CHECK(finished.outcome == Outcome::failed);
  CHECK(finished.reason == "rank 1 on node-0: exit code 7");
  CHECK(driver.out(0) == "0 0 slurm.7 yes /tmp\n");
  CHECK(driver.out(1) == "1 1 slurm.7 yes /tmp\n");
  CHECK(srun.exit_code(1) == 7);
  srun.exit_code(0);
  // Nothing of srun is left, nor was it waited for.
  CHECK(srun.over());
  CHECK(srun.args().find("--jobid=7\n") != std::string::npos);
  CHECK(read_file(driver.root.hosts()) == "n1\nn1\n");
}

TEST_CASE("srun: ranks wait for setup, and setup for nothing") {
  FakeSrun srun;
  Driver driver;
  driver.spec.srun = step_of({1});
  driver.spec.setup = "echo done >$PWD/../setup; while [ ! -e ../go ]; do sleep 0.01; done";
  driver.shell("cat ../setup");
  srun.serve(driver);
  driver.start_and_connect();
  driver.wait_for_line("setup");
  srun.start(0);
  wait_until("srun is let go", [&] { return srun.over(); });
  write_file_atomic(driver.file("go"), "");
  CHECK(driver.finish().outcome == Outcome::succeeded);
  CHECK(driver.out(0) == "done\n");
}

TEST_CASE("srun: a node whose ranks have ended stays until others' are started") {
  FakeSrun srun;
  const wire::SrunStep step = step_of({1, 1});
  Driver first;
  Driver second;
  be_one_of_two(first, step, 0);
  be_one_of_two(second, step, 1);
  srun.serve(first);
  srun.serve(second);
  first.start_and_connect();
  srun.start(0);
  CHECK(first.until<wire::RankExited>().exit.ok());
  CHECK(srun.exit_code(0) == 0);
  // It looks for its supervisor until that is there.
  srun.start(1);
  CHECK_FALSE(gone(srun.pid()));
  second.start_and_connect();
  CHECK(first.finish().outcome == Outcome::succeeded);
  CHECK(second.finish().outcome == Outcome::succeeded);
  CHECK(srun.exit_code(1) == 0);
}

TEST_CASE("srun: what it says is why the ranks were not started") {
  const auto end_with = [](const std::string& script) {
    FakeSrun srun(script);
    Driver driver;
    driver.spec.srun = step_of({1});
    srun.serve(driver);
    driver.start_and_connect();
    return driver.finish();
  };
  auto end = end_with("echo srun: of no matter >&2; echo 'srun: error: bad day' >&2; exit 3");
  CHECK(end.outcome == Outcome::failed);
  CHECK_FALSE(end.lasting);
  CHECK(end.reason ==
        "on node-0: srun could not start the ranks: exit code 3: srun: error: bad day");
  end = end_with("echo 'srun: error: cannot find mpi plugin for mpi/pmix' >&2; exit 1");
  CHECK(end.lasting);
  CHECK(end.reason.find("runs without launcher: srun") != std::string::npos);
}

TEST_CASE("srun: there is none") {
  Driver driver;
  driver.spec.srun = step_of({1});
  std::erase_if(driver.env, [](const std::string& e) { return e.starts_with("PATH="); });
  driver.env.emplace_back("PATH=/none");
  driver.start_and_connect();
  const auto end = driver.finish();
  CHECK(end.lasting);
  CHECK(end.reason == "on node-0: no program srun in PATH (/none)");
}

TEST_CASE("srun: a stop before all tasks are there") {
  FakeSrun srun;
  Driver driver;
  driver.spec.srun = step_of({2});
  driver.shell("true", 2);
  srun.serve(driver);
  driver.start_and_connect();
  const auto [line, writer] = make_pipe();
  srun.start(0, {}, writer.get());
  char rank = 0;
  CHECK(::read(line.get(), &rank, 1) == 1);  // it has found its supervisor
  driver.send(wire::StopRanks{std::nullopt, "enough"});
  const auto end = driver.finish();
  CHECK(end.outcome == Outcome::stopped);
  CHECK(end.reason == "enough");
  CHECK(srun.exit_code(0) == 1);
  wait_until("srun's end", [&] { return srun.over(); });
}

TEST_CASE("srun: tasks wait for nobody who hears that the setup has failed") {
  FakeSrun srun;
  Driver driver;
  driver.spec.srun = step_of({1});
  driver.spec.setup = "while [ ! -e ../go ]; do sleep 0.01; done; exit 3";
  srun.serve(driver);
  driver.start_and_connect();
  const auto [line, writer] = make_pipe();
  srun.start(0, {}, writer.get());
  char rank = 0;
  CHECK(::read(line.get(), &rank, 1) == 1);
  write_file_atomic(driver.file("go"), "");
  CHECK(srun.exit_code(0) == 1);  // the last event is not acknowledged yet
  CHECK(driver.finish().outcome == Outcome::failed);
}

TEST_CASE("srun: where Slurm ends the step the ranks have their grace") {
  FakeSrun srun;
  Driver driver;
  driver.spec.srun = step_of({1});
  driver.shell("trap 'echo told; exit 0' TERM; echo up >../up; while :; do sleep 0.01; done");
  srun.serve(driver);
  driver.start_and_connect();
  srun.start(0);
  driver.wait_for_line("up");
  srun.end(0);
  const auto end = driver.finish();
  CHECK(end.outcome == Outcome::failed);
  CHECK(end.reason == "on node-0: Slurm has ended the step that stood for its ranks");
  CHECK(driver.out(0) == "told\n");
}

TEST_CASE("srun: signals of Slurm's do not end a task, its supervisor's death does") {
  FakeSrun srun;
  Driver driver;
  driver.spec.srun = step_of({1});
  driver.shell("echo $$ >../up; exec sleep 1000");
  srun.serve(driver);
  driver.start_and_connect();
  srun.start(0);
  const pid_t rank = std::stoi(driver.wait_for_line("up"));
  driver.kill_supervisor();
  CHECK(srun.exit_code(0) == 1);
  wait_until("the rank's end", [&] { return gone(rank); });
}

TEST_CASE("srun: who is no task of this node's is refused") {
  FakeSrun srun;
  Driver driver;
  driver.spec.srun = step_of({1});
  srun.serve(driver);
  driver.start_and_connect();
  const std::string name = supervise::launch_socket(driver.spec.srun->secret, 0);
  CHECK_FALSE(connect_abstract(supervise::launch_socket("guessed", 0)).has_value());
  for (const char* line : {"\n", " \n", "1 0\n", "-1 0\n", "0 x\n", "0 99999999999\n", "0\n",
                           "no line that ever ends, and none that is so long"}) {
    const auto guest = connect_abstract(name);
    REQUIRE(guest.has_value());
    write_all(guest->get(), line);
    char byte = 0;
    wait_until("it is refused", [&] { return ::read(guest->get(), &byte, 1) == 0; });
  }
  srun.start(0);
  CHECK(driver.finish().outcome == Outcome::succeeded);
}
