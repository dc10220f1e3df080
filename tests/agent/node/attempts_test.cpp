#include "agent/node/attempts.hpp"

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <fstream>
#include <functional>
#include <optional>

#include "agent/supervise/client.hpp"
#include "agent/supervise/group.hpp"
#include "agent/supervise/record.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;

namespace {

const JobId kJob("job-abcdef");

// A node's supervisors, and what the head hears of them. The agent that it starts them with is a
// script, which does as the test wants before it becomes a supervisor.
struct AttemptsWorld {
  TemporaryFolder folder;
  paths::NodeRoot root{folder / "node"};
  boost::asio::io_context context;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{
      context.get_executor()};
  std::vector<wire::NodeMessage> told;
  std::optional<node::Attempts> attempts;
  wire::StartAttempt start;
  std::vector<pid_t> children;
  std::function<void(wire::AttemptSpec&)> complete;

  explicit AttemptsWorld(const std::string& before) {
    const fs::path script = folder / "agent";
    std::ofstream(script) << "#!/bin/sh\necho $$ >>" << (folder / "pid").string() << "\n"
                          << before
                          << "\nexec " SUPERVISE_PROCESS " \"$3\" \"$5\" \"$7\" 60000 $9\n";
    fs::permissions(script, fs::perms::owner_all);
    wire::AttemptSpec& spec = start.spec;
    spec.cluster = ClusterId("test-" + random_hex(3));
    spec.job = kJob;
    spec.job_name = "job";
    spec.node = NodeId("node-0");
    spec.token = random_hex(16);
    spec.node_ips = {"127.0.0.1"};
    spec.master_addr = "127.0.0.1";
    spec.workdir = folder.path().string();
    spec.storage_path = (folder / "storage").string();
    spec.command = {"echo started >>ranks; sleep 1000"};
    spec.shell = true;
    spec.nproc = 1;
    spec.world_size = 1;
    make_folders(root.root);
  }
  ~AttemptsWorld() {
    attempts.reset();
    for (const pid_t pid : children) {
      ::kill(pid, SIGKILL);
      (void)try_wait(pid);
    }
    const auto record = supervise::read_supervisor(paths::attempt(root, kJob, 1));
    if (record) supervise::clean_group(record->cgroup, start.spec, std::chrono::seconds(5));
    sweep("DTRAIN_ATTEMPT_TOKEN", start.spec.token, std::chrono::seconds(5));
    remove_tree(paths::socket_folder(root.root));
  }

  // As a node agent that is started newly.
  void begin(std::chrono::milliseconds start_limit = std::chrono::seconds(60),
             bool head_is_there = true) {
    node::Attempts::Hooks hooks;
    hooks.send = [this](wire::NodeMessage message) { told.push_back(std::move(message)); };
    hooks.complete = complete;
    attempts.emplace(context.get_executor(), root, (folder / "agent").string(), hooks,
                     node::Attempts::Options{start_limit});
    attempts->recover();
    if (head_is_there) attempts->head_joined();
  }

  void run_until(const std::function<bool()>& ready) {
    const auto until = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
    while (!ready()) {
      REQUIRE(std::chrono::steady_clock::now() < until);
      context.run_one_for(std::chrono::milliseconds(5));
    }
  }

  // The pid of what was started.
  pid_t supervisor() {
    std::string text;
    run_until([&] {
      text = read_file_if_there(folder / "pid").value_or("");
      return text.ends_with("\n");
    });
    children.push_back(std::stoi(text));
    return children.back();
  }
  const wire::SupervisorLost* lost() const {
    for (const wire::NodeMessage& message : told) {
      if (const auto* found = std::get_if<wire::SupervisorLost>(&message)) return found;
    }
    return nullptr;
  }
  bool ranks_told() const {
    return std::any_of(told.begin(), told.end(), [](const wire::NodeMessage& message) {
      const auto* event = std::get_if<wire::FromSupervisor>(&message);
      return event != nullptr && std::holds_alternative<wire::RanksStarted>(event->event.body);
    });
  }
  // The event that its node has finished.
  const wire::AttemptEvent* finished() const {
    for (const wire::NodeMessage& message : told) {
      const auto* event = std::get_if<wire::FromSupervisor>(&message);
      if (event != nullptr && std::holds_alternative<wire::NodeFinished>(event->event.body)) {
        return &event->event;
      }
    }
    return nullptr;
  }
  std::string ranks() const { return read_file_if_there(folder / "ranks").value_or(""); }
};

// State of a process as in /proc; 0 when it is gone.
char state_of(pid_t pid) {
  const auto text = read_file_if_there("/proc/" + std::to_string(pid) + "/stat");
  return text ? text->at(text->rfind(')') + 2) : '\0';
}

bool has_ended(pid_t pid) {
  const char state = state_of(pid);
  return state == '\0' || state == 'Z';
}

}  // namespace

TEST_CASE("a supervisor that does not come to its start is ended before it is said to be lost") {
  AttemptsWorld world("kill -STOP $$");
  world.begin(std::chrono::milliseconds(50));
  world.attempts->start(world.start);
  const pid_t pid = world.supervisor();
  world.run_until([&] { return world.lost() != nullptr; });
  CHECK(has_ended(pid));
  CAPTURE(world.lost()->reason);
  CHECK(world.lost()->reason.find("was killed") != std::string::npos);
  CHECK(world.ranks().empty());
}

TEST_CASE("a supervisor that is slow to start is waited for, by the next node agent too") {
  AttemptsWorld world("kill -STOP $$");
  world.begin();
  world.attempts->start(world.start);
  const pid_t pid = world.supervisor();
  world.run_until([&] { return state_of(pid) == 'T'; });
  world.begin(std::chrono::milliseconds(1));  // the limit is for what it started itself
  CHECK(world.attempts->unfinished() ==
        std::vector<std::pair<JobId, int>>{{world.start.spec.job, 1}});
  // It has tried to connect, and found that nobody listens.
  for (int turn = 0; turn < 5; ++turn) world.context.run_one_for(std::chrono::milliseconds(100));
  CHECK(world.lost() == nullptr);
  ::kill(pid, SIGCONT);
  world.run_until([&] { return world.ranks_told(); });
  world.run_until([&] { return !world.ranks().empty(); });
  world.attempts->start(world.start);  // a repeat starts nothing
  world.attempts->command({kJob, 1, wire::StopRanks{}});
  world.run_until([&] {
    const auto* event = std::get_if<wire::FromSupervisor>(&world.told.back());
    return event != nullptr && std::holds_alternative<wire::NodeFinished>(event->event.body);
  });
  CHECK(world.lost() == nullptr);
  CHECK(world.ranks() == "started\n");
}

TEST_CASE(
    "told to the next node agent again where the last was killed before there was a supervisor") {
  AttemptsWorld world("true");
  const paths::AttemptRoot of = paths::attempt(world.root, kJob, 1);
  make_folders(of.ranks());
  write_file_atomic(of.secrets(), "{}");
  write_file_atomic(of.spec(), "{}");
  world.begin();
  CHECK(world.attempts->unfinished().empty());  // so that the head says it again
  CHECK_FALSE(fs::exists(of.secrets()));
  world.attempts->start(world.start);
  world.supervisor();
  world.run_until([&] { return !world.ranks().empty(); });
  CHECK(world.lost() == nullptr);
}

TEST_CASE("an attempt that runs is not completed again for who asks again") {
  AttemptsWorld world("");
  int completed = 0;
  world.complete = [&](wire::AttemptSpec&) {
    if (++completed > 1) throw Error(ErrorCode::io, "its environment cannot be read");
  };
  world.begin();
  world.attempts->start(world.start);
  world.run_until([&] { return world.ranks_told(); });
  world.attempts->start(world.start);
  CHECK(completed == 1);
  CHECK(world.attempts->unfinished().size() == 1);
}

TEST_CASE("why an attempt could not be started is said again to who asks again") {
  AttemptsWorld world("");
  world.begin();
  const fs::path jobs = world.root.root / "jobs";
  std::ofstream(jobs) << "in the way";  // a file where its folders would be
  for (const std::size_t times : {1, 2}) {
    world.attempts->start(world.start);
    world.run_until([&] { return world.told.size() == times; });
    const auto* failed = std::get_if<wire::StartFailed>(&world.told.back());
    REQUIRE(failed != nullptr);
    CHECK(std::string(failed->error.what()).find("jobs") != std::string::npos);
  }
  fs::remove(jobs);
}

TEST_CASE("a supervisor whose end nobody will acknowledge goes with its job") {
  AttemptsWorld world("");
  world.start.spec.command = {"true"};
  world.begin();
  world.attempts->start(world.start);
  const pid_t pid = world.supervisor();
  world.run_until([&] { return world.finished() != nullptr; });
  CHECK_FALSE(has_ended(pid));
  world.attempts->forget(kJob);
  world.run_until([&] { return has_ended(pid); });
}

// As a head says that had lost the node before it removed the job.
TEST_CASE("of a job that is forgotten while it runs the ranks end, and then its folder goes") {
  AttemptsWorld world("");
  world.start.spec.command = {"echo $$ >>ranks; exec sleep 1000"};
  const fs::path job = world.root.jobs() / kJob.str();
  world.begin();
  world.attempts->start(world.start);
  SUBCASE("as it starts") {
    world.attempts->forget(kJob);
  }
  SUBCASE("when it runs") {
    world.run_until([&] { return world.ranks().ends_with("\n"); });
    world.attempts->forget(kJob);
  }
  SUBCASE("by the next node agent, to which the head says it again") {
    world.run_until([&] { return world.ranks().ends_with("\n"); });
    world.attempts->forget(kJob);
    world.begin();
    CHECK(world.attempts->unfinished().size() == 1);
    CHECK(world.attempts->on_disk() == std::vector<JobId>{kJob});
    world.attempts->forget(kJob);
  }
  SUBCASE("whose supervisor was killed") {
    world.run_until([&] { return world.ranks().ends_with("\n"); });
    ::kill(supervise::read_supervisor(paths::attempt(world.root, kJob, 1))->pid, SIGKILL);
    world.attempts->forget(kJob);
  }
  const pid_t supervisor = world.supervisor();
  world.run_until([&] { return !fs::exists(job); });
  if (const std::string rank = world.ranks(); !rank.empty()) CHECK(has_ended(std::stoi(rank)));
  CHECK((world.finished() != nullptr || world.lost() != nullptr));
  CHECK(world.attempts->unfinished().empty());
  world.run_until([&] { return has_ended(supervisor); });
}

// A node may have run ten thousand of them before their jobs are removed.
TEST_CASE("an attempt that is over holds no connection") {
  const auto sockets = [] {
    int count = 0;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code closed;
      count += fs::read_symlink(entry, closed).string().starts_with("socket:") ? 1 : 0;
    }
    return count;
  };
  AttemptsWorld world("");
  world.start.spec.command = {"true"};
  world.begin();
  const int before = sockets();
  world.attempts->start(world.start);
  (void)world.supervisor();
  world.run_until([&] { return world.finished() != nullptr; });
  CHECK(sockets() == before + 1);
  world.attempts->command({kJob, 1, wire::EventAck{world.finished()->seq, std::nullopt}});
  world.run_until([&] { return sockets() == before; });
  CHECK(world.attempts->unfinished().empty());
}

TEST_CASE("one that dies before it has said a word is lost at once") {
  AttemptsWorld world("");
  SUBCASE("to who started it") {
    std::ofstream(world.folder / "agent") << "#!/bin/sh\nexit 1\n";
    world.begin();
    world.attempts->start(world.start);
  }
  SUBCASE("to who comes after") {
    make_folders(paths::attempt(world.root, kJob, 1).root);
    supervise::write_supervisor(paths::attempt(world.root, kJob, 1), {1, 0, "another", ""});
    world.begin();
  }
  world.run_until([&] { return world.lost() != nullptr; });
  CHECK(world.lost()->reason.find("killed or crashed") != std::string::npos);
}

TEST_CASE("an attempt is stopped by its node alone, the head being away, and heard of later") {
  AttemptsWorld world("");
  world.begin();
  CHECK_FALSE(world.attempts->running());
  CHECK_FALSE(world.attempts->unheard());
  world.attempts->start(world.start);
  CHECK(world.attempts->running());
  SUBCASE("as it starts") {}
  SUBCASE("when it runs") {
    world.run_until([&] { return world.ranks_told(); });
  }
  SUBCASE("by the next node agent") {
    world.run_until([&] { return world.ranks_told(); });
    world.begin(std::chrono::seconds(60), false);
  }
  CHECK(world.attempts->running());
  world.attempts->command_all(wire::StopRanks{std::nullopt, "told to leave"});
  world.attempts->command_all(wire::StopRanks{std::chrono::seconds(10), "told to leave"});
  world.run_until([&] { return !world.attempts->running(); });
  CHECK(world.attempts->unheard());
  const auto* last = std::get_if<wire::FromSupervisor>(&world.told.back());
  REQUIRE(last != nullptr);
  const auto* finished = std::get_if<wire::NodeFinished>(&last->event.body);
  REQUIRE(finished != nullptr);
  CHECK(finished->outcome == wire::NodeFinished::Outcome::stopped);
  CHECK(finished->reason == "told to leave");
  world.attempts->command({kJob, 1, wire::EventAck{last->event.seq, std::nullopt}});
  world.run_until([&] { return !world.attempts->unheard(); });
}

TEST_CASE("of a lost supervisor there is nothing more to hear, until the head comes anew") {
  AttemptsWorld world("");
  world.begin();
  world.attempts->start(world.start);
  world.run_until([&] { return world.ranks_told(); });
  ::kill(world.supervisor(), SIGKILL);
  world.run_until([&] { return !world.attempts->unheard(); });
  CHECK(world.lost() != nullptr);
  CHECK_FALSE(world.attempts->running());
  world.told.clear();
  world.attempts->head_joined();
  CHECK(world.attempts->unheard());
  world.run_until([&] { return !world.attempts->unheard(); });
  CHECK(world.lost() != nullptr);
}
