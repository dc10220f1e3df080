#include <doctest/doctest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/cluster/down.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/cluster/up.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"
#include "tests/support/end_processes.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;

namespace {

// A state folder of its own, and nothing left running at the end.
struct House {
  House() {
    ::setenv("XDG_STATE_HOME", folder.path().c_str(), 1);
    ::unsetenv("DTRAIN_HEAD_SOCKET");
    ::unsetenv("DTRAIN_CLUSTER");
    ::unsetenv("FAKE_AGENT_FAILS");
    spec.cluster_name = "c";
    spec.provider.local_nodes = 2;
    options.agent = FAKE_AGENT;
  }
  ~House() { testing::end_processes(state()); }
  fs::path state() const { return paths::cluster_state("c"); }
  std::size_t running(const std::string& what) const {
    std::size_t count = 0;
    for (const FoundProcess& process : cluster_processes(state())) count += process.what == what;
    return count;
  }

  testing::TemporaryFolder folder;
  ClusterSpec spec;
  UpOptions options;
};

}  // namespace

TEST_CASE("up builds, a second up finds it, down leaves nothing") {
  House house;
  const UpReport first = up(house.spec, house.options);
  CHECK(first.action == UpAction::build);
  CHECK(first.nodes.size() == 2);
  CHECK(house.running("watch") == 1);
  CHECK(house.running("head") == 1);
  CHECK(house.running("node") == 2);
  CHECK(read_file(house.state() / "nodes/node-1/identity.txt") == "signed request of node-1\n");

  CHECK(up(house.spec, house.options).action == UpAction::nothing);
  house.spec.provider.local_nodes = 3;
  CHECK_THROWS_AS(up(house.spec, house.options), Error);

  const DownReport report = down("c", {});
  CHECK(report.was_there);
  CHECK(report.complete);
  REQUIRE(!report.rows.empty());
  CHECK(report.rows.front().had == "4");
  CHECK_MESSAGE(report.rows.front().note.find("killed") == std::string::npos,
                report.rows.front().note);
  CHECK(cluster_processes(house.state()).empty());
  CHECK(!fs::exists(house.state()));
  CHECK(!down("c", {}).was_there);
}

TEST_CASE("of an up elsewhere that was cut off nothing is forgotten, nor said to be gone") {
  House house;
  make_folders(house.state());
  set_unnoted("c", "/my/cluster.yaml");
  try {
    down("c", {});
    FAIL("it was taken down");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::conflict);
    CHECK(error.hint() == "dtrain down /my/cluster.yaml -c c finds it");
  }
  // Another up may be at work still: who asks first hears of it as they wait for their turn.
  CHECK_NOTHROW(survey_down("c", {}));
  CHECK_THROWS_AS(up(house.spec, house.options), Error);
  CHECK_THROWS_AS(refuse_unnoted("c"), Error);
  // By its YAML nothing was found.
  DownOptions searched;
  searched.searched = true;
  CHECK(down("c", searched).complete);
  CHECK(!fs::exists(house.state()));
}

TEST_CASE("a killed watch is started again, its children are let be") {
  House house;
  up(house.spec, house.options);
  const auto watch = living_watch(house.state());
  REQUIRE(watch);
  signal_process(*watch, SIGKILL);
  REQUIRE(wait_gone(*watch, std::chrono::seconds(5)));
  CHECK(house.running("node") == 2);
  CHECK(up(house.spec, house.options).action == UpAction::start_watch);
  CHECK(living_watch(house.state()));
  CHECK(house.running("node") == 4);  // two wait for the others' end
  const DownReport report = down("c", {});
  CHECK(report.complete);
  CHECK_MESSAGE(report.rows.front().note.find("killed") == std::string::npos,
                report.rows.front().note);
}

TEST_CASE("down without a head kills what is left and says so") {
  House house;
  up(house.spec, house.options);
  for (const FoundProcess& process : cluster_processes(house.state())) {
    if (process.what == "head") signal_process(process, SIGKILL);
  }
  const DownReport report = down("c", {});
  CHECK(report.complete);
  CHECK(report.rows.front().note.find("killed: ") != std::string::npos);
  CHECK(cluster_processes(house.state()).empty());
}

TEST_CASE("down ends what an attempt left behind, and nothing that only looks at its files") {
  House house;
  up(house.spec, house.options);
  const std::string attempt = (house.state() / "nodes/node-0/jobs/j/attempt-1").string();
  const std::vector<std::vector<std::string>> environments{
      // A rank of a supervisor that sets no folder.
      {"DTRAIN_ATTEMPT_TOKEN=t", "TORCHELASTIC_ERROR_FILE=" + attempt + "/errors/0.json"},
      // What `setup` left running.
      {"DTRAIN_ATTEMPT_TOKEN=t", "DTRAIN_ATTEMPT_ROOT=" + attempt},
      // A worker of a torchrun that a rank has started.
      {"DTRAIN_ATTEMPT_TOKEN=t", "TORCHELASTIC_ERROR_FILE=/tmp/torchelastic/0/error.json",
       "DTRAIN_ATTEMPT_ROOT=" + attempt}};
  std::vector<pid_t> left_over;
  for (const std::vector<std::string>& env : environments) {
    SpawnOptions process;
    process.argv = {"/bin/sleep", "1000"};
    process.env = env;
    process.new_session = true;
    process.death_signal = SIGKILL;
    left_over.push_back(spawn(process));
  }
  SpawnOptions pager;
  pager.argv = {"/usr/bin/tail", "-f", (house.state() / "cluster.json").string()};
  const pid_t looking = spawn(pager);
  REQUIRE(house.running("rank") == left_over.size());
  for (const FoundProcess& process : cluster_processes(house.state())) {
    if (process.what == "rank") CHECK(process.attempt == attempt);
  }
  CHECK(down("c", {}).complete);
  for (const pid_t pid : left_over) CHECK(wait(pid).signal == SIGKILL);
  CHECK(!try_wait(looking));
  ::kill(looking, SIGKILL);
  wait(looking);
}

TEST_CASE("agents carry no mark of what up was typed in") {
  const char* const marks[] = {"DTRAIN_ATTEMPT_TOKEN", "DTRAIN_ATTEMPT_ROOT", "DTRAIN_EXEC_ROOT",
                               "DTRAIN_SETUP_ROOT"};
  House house;
  for (const char* mark : marks) ::setenv(mark, "/of/another", 1);
  up(house.spec, house.options);
  for (const char* mark : marks) ::unsetenv(mark);
  const std::vector<FoundProcess> agents = cluster_processes(house.state());
  CHECK(agents.size() == 4);
  for (const FoundProcess& agent : agents) {
    const std::string env = environment_of(agent.pid).value_or("");
    CHECK(env.find("XDG_STATE_HOME=") != std::string::npos);
    for (const char* mark : marks) CHECK_MESSAGE(env.find(mark) == std::string::npos, agent.what);
  }
  CHECK(down("c", {}).complete);
}

TEST_CASE("a step that fails is named, and what was built is cleared away") {
  House house;
  ::setenv("FAKE_AGENT_FAILS", "sign", 1);
  try {
    up(house.spec, house.options);
    FAIL("up succeeded");
  } catch (const Error& error) {
    const std::string what = error.what();
    CHECK(what.find("signing the certificate of node-0") != std::string::npos);
    CHECK(what.find("this is what went wrong") != std::string::npos);
    CHECK(what.find("of which 2 failed") != std::string::npos);
  }
  ::unsetenv("FAKE_AGENT_FAILS");
  CHECK(!load_cluster("c"));
  CHECK(up(house.spec, house.options).action == UpAction::build);
  CHECK(down("c", {}).complete);
}

TEST_CASE("a cluster that does not become ready says which part") {
  House house;
  ::setenv("FAKE_AGENT_FAILS", "head", 1);
  house.options.ready_limit = std::chrono::milliseconds(300);
  try {
    up(house.spec, house.options);
    FAIL("up succeeded");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::timeout);
    CHECK(std::string(error.what()).find("the head of cluster c does not answer") !=
          std::string::npos);
  }
  ::unsetenv("FAKE_AGENT_FAILS");
  CHECK(down("c", {}).complete);
}

TEST_CASE("keep_files moves the folder aside") {
  House house;
  up(house.spec, house.options);
  write_file_atomic(house.state() / "head/kept.txt", "x");
  DownOptions options;
  options.keep_files = true;
  const DownReport report = down("c", options);
  CHECK(report.complete);
  CHECK(read_file(report.kept / "head/kept.txt") == "x");
  CHECK(!fs::exists(house.state()));
}
