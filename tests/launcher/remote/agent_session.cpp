#include "launcher/remote/agent_session.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/wire/json.hpp"
#include "tests/launcher/remote/session_support.hpp"

using namespace dtrain;
using namespace dtrain::testing;
using std::chrono::milliseconds;
using std::chrono::seconds;
using wire::SetupState;

namespace {

wire::StartSetup list_of(std::vector<std::string> commands) {
  wire::StartSetup list;
  list.list = "setup";
  list.commands = std::move(commands);
  return list;
}

struct Ran {
  wire::SetupStatus status;
  std::string output;
};

Ran run(AgentSession& session, const wire::StartSetup& list) {
  SetupProgress progress;
  Ran ran;
  ran.status = session.run_setup(list, progress, [&](std::string_view piece) {
    ran.output += piece;
    return true;
  });
  return ran;
}

std::vector<SetupState> states(const wire::SetupStatus& status) {
  std::vector<SetupState> all;
  for (const wire::SetupCommand& command : status.commands) all.push_back(command.state);
  return all;
}

// Writes files in the home that say what ran: `echo x >>FILE`.
std::string mark(const std::string& what) {
  return "echo " + what + " >>~/ran";
}
std::string ran_file(const Home& home) {
  return read_file_if_there(home.path() / "ran").value_or("");
}

// A fifo that a command waits on, until the test lets it go.
class Gate {
 public:
  explicit Gate(const Home& home) : path_(home.path() / "gate") {
    REQUIRE(::mkfifo(path_.c_str(), 0600) == 0);
    fd_ = open_file(path_, O_RDWR);  // held: what is written stays until it is read
  }
  static std::string wait() { return "read x <~/gate"; }
  void open() const { write_all(fd_.get(), "go\n"); }

 private:
  fs::path path_;
  UniqueFd fd_;
};

// All of `up` for one machine that is head and node.
wire::AgentsStarted bring_up(AgentSession& session, const Home& home) {
  const wire::NodeFound found = session.open_node(Home::node(true));
  session.init_head({"lab", "ssh", 1, 0});
  const nlohmann::json config = {{"cluster", "lab-abcdef"},
                                 {"node", "node-0"},
                                 {"address", "127.0.0.1"},
                                 {"head", {{"file", (home.head_root() / "head.json").string()}}}};
  wire::ConfigureNode parts;
  parts.certificates = session.sign(NodeId("node-0"), found.request);
  parts.node_config = config.dump();
  session.configure(parts);
  return session.start_agents({true, false});
}

std::set<std::string> kinds(const std::vector<wire::AgentProcess>& processes) {
  std::set<std::string> all;
  for (const wire::AgentProcess& process : processes) all.insert(process.what);
  return all;
}

std::int64_t pid_of(const std::vector<wire::AgentProcess>& processes, const std::string& what) {
  for (const wire::AgentProcess& process : processes) {
    if (process.what == what) return process.pid;
  }
  return 0;
}

// The head's answer to GET, over the bridge.
std::string get_over_bridge(const Home& home, const std::string& path) {
  LocalTransport here;
  const auto channel =
      here.open({home.agent_file().string(), "bridge", "--root", home.head_root().string()});
  write_all(channel->fd(),
            "GET " + path + " HTTP/1.1\r\nHost: dtrain\r\nConnection: close\r\n\r\n");
  std::string answer;
  std::string piece(65536, '\0');
  ssize_t got = 0;
  while ((got = ::recv(channel->fd(), piece.data(), piece.size(), 0)) > 0) {
    answer.append(piece, 0, static_cast<std::size_t>(got));
  }
  return answer;
}

}  // namespace

TEST_CASE("session: what a machine says of itself") {
  const Home home;
  const AgentSession session = home.open();
  const wire::HostFacts& host = session.hello().host;
  CHECK(host.home == home.path().string());
  CHECK(host.base == (home.path() / ".dtrain").string());
  CHECK(host.arch == "x86_64");
  CHECK(host.uid == static_cast<std::int64_t>(::geteuid()));
  CHECK_FALSE(host.user.empty());
  CHECK(host.boot_id.starts_with(boot_id()));
  CHECK(host.cpus >= 1);
  CHECK(host.memory > 0);
  CHECK(host.home_free > 0);
  CHECK_FALSE(host.home_on_network);
  CHECK(std::abs(session.clock_ahead().count()) < 5000);
}

TEST_CASE("session: nothing of a login goes on into what it starts") {
  const Home home;
  const VariableIs agent("SSH_AUTH_SOCK", "/tmp/agent.1");
  const VariableIs client("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22");
  AgentSession session = home.open_node();
  wire::Probe probe;
  probe.command = "env";
  const wire::ProbeResult result = session.probe(probe);
  CHECK(result.exit_code == 0);
  CHECK(result.out.find("HOME=" + home.path().string()) != std::string::npos);
  CHECK(result.out.find("SSH_") == std::string::npos);
}

TEST_CASE("session: what the agent refuses is an error, and the session goes on") {
  const Home home;
  AgentSession session = home.open();
  wire::Survey early;
  CHECK_THROWS_AS(session.survey(early), Error);  // no node yet
  wire::OpenNode wrong = Home::node();
  wrong.node = NodeId("../../etc");
  CHECK_THROWS_AS(session.open_node(wrong), Error);
  wrong.node = NodeId("head");
  CHECK_THROWS_AS(session.open_node(wrong), Error);
  wrong = Home::node();
  wrong.base = "relative";
  CHECK_THROWS_AS(session.open_node(wrong), Error);
  CHECK_FALSE(fs::exists(home.path() / ".dtrain/lab-abcdef"));
  CHECK(session.usable());
  CHECK(session.open_node(Home::node()).root == home.root().string());
}

TEST_CASE("session: a dry run changes nothing") {
  const Home home;
  AgentSession session = home.open();
  wire::OpenNode open = Home::node();
  open.prepare = false;
  open.lists = {{"setup", {"true", "false"}}};
  const wire::NodeFound found = session.open_node(open);
  CHECK_FALSE(found.there);
  CHECK(found.request.empty());
  CHECK(found.agents.empty());
  CHECK_FALSE(found.agents_current);
  REQUIRE(found.lists.size() == 1);
  CHECK(found.lists[0].first == 0);
  CHECK(found.lists[0].total == 2);
  CHECK_FALSE(fs::exists(home.path() / ".dtrain/lab-abcdef"));
}

TEST_CASE("session: provider.root") {
  const Home home;
  AgentSession session = home.open();
  wire::OpenNode open = Home::node();
  open.base = "~/fast disk/x";
  CHECK(session.open_node(open).root == (home.path() / "fast disk/x/lab-abcdef/node-0").string());
}

TEST_CASE("session: certificates, configuration and marks are kept and seen again") {
  const Home home;
  AgentSession session = home.open();
  const wire::NodeFound fresh = session.open_node(Home::node(true));
  CHECK_FALSE(fresh.there);
  CHECK(fresh.expires_ms == 0);
  CHECK_FALSE(fresh.head);
  const wire::HeadFound head = session.init_head({"lab", "ssh", 2, 0});
  CHECK(head.name == "lab");
  CHECK(head.port != 0);  // other nodes are told it before the head runs

  wire::ConfigureNode parts;
  parts.certificates = session.sign(NodeId("node-0"), fresh.request);
  parts.node_config = R"({"cluster":"lab-abcdef","node":"node-0","address":"10.0.0.2",)"
                      R"("head":{"addresses":["10.0.0.1"],"port":46500}})";
  parts.marks = {{"file_mounts", "abc"}, {"x", "y"}};
  CHECK(session.configure(parts).changed ==
        std::vector<std::string>{"certificates", "config", "marks"});
  CHECK(session.configure(parts).changed.empty());
  parts = {};
  parts.marks = {{"x", ""}};
  session.configure(parts);

  const wire::NodeFound found = session.open_node(Home::node(true));
  CHECK(found.there);
  CHECK(found.config.find("10.0.0.1") != std::string::npos);
  CHECK(found.marks == std::map<std::string, std::string>{{"file_mounts", "abc"}});
  REQUIRE(found.head);
  CHECK(found.ca_sha256 == found.head->ca_sha256);
  CHECK(found.ca_sha256 == head.ca_sha256);
  const std::int64_t now = to_millis(std::chrono::system_clock::now());
  CHECK(found.expires_ms > now + 29LL * 24 * 3600 * 1000);

  parts = {};
  parts.node_config = R"({"cluster":"other-abcdef","node":"node-0","address":"x","head":{}})";
  CHECK_THROWS_AS(session.configure(parts), Error);
  CHECK_THROWS_AS(session.sign(NodeId("node-1"), fresh.request), Error);
  CHECK(fs::exists(home.head_root() / "nodes/node-0"));
  session.revoke(NodeId("node-0"));
  CHECK_FALSE(fs::exists(home.head_root() / "nodes/node-0"));
  session.revoke(NodeId("node-0"));
}

TEST_CASE("session: the login environment is captured") {
  const Home home;
  const VariableIs shell("SHELL", "/bin/sh");
  write_file_atomic(home.path() / ".profile", "export FROM_PROFILE=yes\n");
  AgentSession session = home.open_node();
  wire::ConfigureNode parts;
  parts.capture_environment = true;
  const wire::Configured done = session.configure(parts);
  CHECK(done.changed == std::vector<std::string>{"environment"});
  CHECK(done.warning.empty());
  CHECK(session.open_node(Home::node()).environment);
  CHECK(read_file(home.root() / "login_env").find("FROM_PROFILE=yes") != std::string::npos);
}

TEST_CASE("session: a cluster is found by its name, by who knows nothing else") {
  const Home home;
  AgentSession session = home.open_node(true);
  CHECK(session.find_clusters({"lab", ""}).clusters.empty());
  session.init_head({"lab", "ssh", 2, 0});
  AgentSession other = home.open();
  const wire::FoundClusters found = other.find_clusters({"lab", ""});
  REQUIRE(found.clusters.size() == 1);
  CHECK(found.clusters[0].cluster == "lab-abcdef");
  CHECK(found.clusters[0].root == home.head_root().string());
  CHECK(other.find_clusters({"", ""}).clusters.size() == 1);
  CHECK(other.find_clusters({"other", ""}).clusters.empty());
}

TEST_CASE("session: where others may write a head of theirs, or behind a link, is none") {
  const Home home;
  AgentSession session = home.open_node(true);
  session.init_head({"lab", "ssh", 2, 0});
  const auto found = [&] { return session.find_clusters({"lab", "~/shared"}).clusters.size(); };
  CHECK(found() == 1);
  const fs::path shared = home.path() / "shared";
  make_folders(shared);
  fs::permissions(shared, fs::perms::all | fs::perms::sticky_bit);
  fs::rename(home.path() / ".dtrain/lab-abcdef", shared / "lab-abcdef");
  CHECK(found() == 1);
  SUBCASE("a link to the cluster's folder") {
    fs::rename(shared / "lab-abcdef", home.path() / "there");
    fs::create_directory_symlink(home.path() / "there", shared / "lab-abcdef");
  }
  SUBCASE("a link to the head's") {
    fs::rename(shared / "lab-abcdef/head", home.path() / "there");
    fs::create_directory_symlink(home.path() / "there", shared / "lab-abcdef/head");
  }
  SUBCASE("another user's") {
    if (::geteuid() != 0) {
      MESSAGE("skipped: a folder of another user needs root");
      return;
    }
    const char* whose = "lab-abcdef";
    SUBCASE("the cluster's folder") {}
    SUBCASE("the cluster's folder, in one that is theirs") {
      fs::permissions(shared, fs::perms::owner_all);
      REQUIRE(::chown(shared.c_str(), 12345, 12345) == 0);
    }
    SUBCASE("the head's folder") {
      whose = "lab-abcdef/head";
    }
    REQUIRE(::chown((shared / whose).c_str(), 12345, 12345) == 0);
  }
  CHECK(found() == 0);
  // Storage may show a folder under another user, and it may have been moved.
  fs::permissions(shared, fs::perms::owner_all);
  REQUIRE(::chown(shared.c_str(), ::geteuid(), ::getegid()) == 0);
  CHECK(found() == 1);
}

TEST_CASE("setup: commands run in order with their environment, and only once") {
  const Home home;
  AgentSession session = home.open_node();
  wire::StartSetup list = list_of({"echo one $RAY_HEAD_IP; " + mark("1"), mark("2") + "; pwd"});
  list.env = {{"RAY_HEAD_IP", "10.0.0.1"}};
  const Ran first = run(session, list);
  CHECK(first.status.state == SetupState::succeeded);
  CHECK(first.output.find("one 10.0.0.1\n") != std::string::npos);
  CHECK(first.output.find("\n" + home.path().string() + "\n") != std::string::npos);
  CHECK(ran_file(home) == "1\n2\n");

  const Ran again = run(session, list);
  CHECK(again.status.state == SetupState::succeeded);
  CHECK(again.output.empty());
  CHECK(ran_file(home) == "1\n2\n");
  wire::OpenNode open = Home::node();
  open.lists = {{"setup", list.commands}};
  CHECK(session.open_node(open).lists[0].first == 2);

  list.from_start = true;
  run(session, list);
  CHECK(ran_file(home) == "1\n2\n1\n2\n");
}

TEST_CASE("setup: a failure in the middle; then on from the command that was changed") {
  const Home home;
  AgentSession session = home.open_node();
  const std::string bad = "for i in $(seq 100); do echo line $i; done; exit 7";
  const Ran failed = run(session, list_of({mark("1"), bad, mark("3")}));
  CHECK(failed.status.state == SetupState::failed);
  CHECK(states(failed.status) ==
        std::vector<SetupState>{SetupState::succeeded, SetupState::failed, SetupState::none});
  CHECK(failed.status.commands[1].exit_code == 7);
  REQUIRE(failed.status.tail.size() == wire::kTailLines);
  CHECK(failed.status.tail.back() == "line 100");
  const Error error = wire::setup_error(failed.status);
  CHECK(error.code() == ErrorCode::failed);
  CHECK(error.message() == "setup, command 2 of 3 ended with exit code 7: " + bad);
  CHECK(ran_file(home) == "1\n");

  // The same again: the failed one and what follows.
  CHECK(run(session, list_of({mark("1"), bad, mark("3")})).status.first == 1);
  CHECK(ran_file(home) == "1\n");
  const Ran mended = run(session, list_of({mark("1"), mark("2"), mark("3")}));
  CHECK(mended.status.state == SetupState::succeeded);
  CHECK(mended.status.first == 1);
  CHECK(ran_file(home) == "1\n2\n3\n");
  // Another first command: all of them.
  run(session, list_of({mark("0"), mark("2"), mark("3")}));
  CHECK(ran_file(home) == "1\n2\n3\n0\n2\n3\n");
  // One taken off the end and put there again is run again.
  run(session, list_of({mark("0"), mark("2")}));
  run(session, list_of({mark("0"), mark("2"), mark("3")}));
  CHECK(ran_file(home) == "1\n2\n3\n0\n2\n3\n3\n");
}

TEST_CASE("setup: a lost connection costs no command and no byte, and doubles none") {
  const Home home;
  const Gate gate(home);
  const wire::StartSetup list =
      list_of({"for i in $(seq 2000); do echo line $i; done; " + mark("1"), Gate::wait(),
               "for i in $(seq 2000); do echo more $i; done; " + mark("3")});
  SetupProgress progress;
  std::string output;
  {
    AgentSession session = home.open_node();
    session.run_setup(list, progress, [&](std::string_view piece) {
      output += piece;
      return output.find("line 1000\n") == std::string::npos;
    });
  }  // the channel is gone, and its session with it
  CHECK(progress.offset == static_cast<std::int64_t>(output.size()));
  gate.open();
  AgentSession session = home.open_node();
  const wire::SetupStatus status = session.run_setup(list, progress, [&](std::string_view piece) {
    output += piece;
    return true;
  });
  CHECK(status.state == SetupState::succeeded);
  CHECK(ran_file(home) == "1\n3\n");
  CHECK(output == read_file(home.root() / "setup/setup.log"));
  std::string wanted;
  for (int i = 1; i <= 2000; ++i) wanted += "more " + std::to_string(i) + "\n";
  CHECK(output.size() > wanted.size());
  CHECK(output.substr(output.size() - wanted.size()) == wanted);
}

TEST_CASE("setup: who comes while it runs follows it; other commands must wait") {
  const Home home;
  const Gate gate(home);
  const wire::StartSetup list = list_of({Gate::wait(), mark("2")});
  AgentSession one = home.open_node();
  const wire::SetupStatus started = one.start_setup(list);
  CHECK(started.state == SetupState::running);
  AgentSession two = home.open_node();
  wire::OpenNode open = Home::node();
  open.lists = {{"setup", list.commands}};
  CHECK(two.open_node(open).lists[0].running);
  CHECK(two.start_setup(list).run == started.run);
  try {
    two.start_setup(list_of({"true"}));
    FAIL("two lists at once");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::conflict);
  }
  gate.open();
  CHECK(run(two, list).status.state == SetupState::succeeded);
  CHECK(ran_file(home) == "2\n");
}

TEST_CASE("setup: cancelled with all that it started") {
  const Home home;
  AgentSession session = home.open_node();
  session.start_setup(list_of({"sleep 1000 & sleep 1001", mark("2")}));
  SetupProgress progress;
  const wire::SetupStatus status = session.cancel_setup("setup");
  CHECK(status.state == SetupState::cancelled);
  CHECK(status.commands[0].state == SetupState::cancelled);
  CHECK(cluster_processes(home.root()).empty());
  CHECK(wire::setup_error(status).message().find("was cancelled") != std::string::npos);
  CHECK(session.cancel_setup("setup").state == SetupState::cancelled);
  CHECK(ran_file(home).empty());
}

TEST_CASE("setup: a run whose process was killed is seen as lost, and its command is run again") {
  const Home home;
  const Gate gate(home);
  AgentSession session = home.open_node();
  const wire::StartSetup list = list_of({mark("1"), Gate::wait(), mark("3")});
  SetupProgress progress;
  // The second command's line in the log: it is at it.
  std::string output;
  session.run_setup(list, progress, [&](std::string_view piece) {
    output += piece;
    return output.find(Gate::wait()) == std::string::npos;
  });
  for (const FoundProcess& process : cluster_processes(home.root())) {
    if (process.what == "setup") signal_process(process, SIGKILL);
  }
  const wire::SetupStatus status =
      session.run_setup(list, progress, [](std::string_view) { return true; });
  CHECK(status.state == SetupState::lost);
  CHECK(wire::setup_error(status).message().find("command 2 of 3") != std::string::npos);
  AgentSession again = home.open_node();
  CHECK(again.start_setup(list).first == 1);
  gate.open();
  CHECK(run(again, list).status.state == SetupState::succeeded);
  CHECK(ran_file(home) == "1\n3\n");
}

TEST_CASE(
    "setup: profiles are read as an interactive login's, and heard only in their complaints") {
  const Home home;
  AgentSession session = home.open_node();
  write_file_atomic(home.path() / ".bash_profile",
                    "echo chatter of the profile\necho trouble of the profile >&2\n"
                    "export FROM_PROFILE=yes\n");
  write_file_atomic(home.path() / ".bashrc",
                    "case $- in *i*) ;; *) return;; esac\nexport FROM_BASHRC=yes\n"
                    "alias mark='echo an alias'\nfunction conda { echo conda $1; }\n");
  const Ran ran = run(session, list_of({"echo $FROM_PROFILE $FROM_BASHRC; conda activate",
                                        "mark || echo not an alias"}));
  CHECK(ran.status.state == SetupState::succeeded);
  CHECK(ran.output.find("yes yes\nconda activate\n") != std::string::npos);
  CHECK(ran.output.find("chatter") == std::string::npos);
  CHECK(ran.output.find("trouble of the profile") != std::string::npos);
  CHECK(ran.output.find("not an alias") != std::string::npos);
  CHECK(ran.output.find("job control") == std::string::npos);
  CHECK(ran.output.find("terminal process group") == std::string::npos);
}

TEST_CASE("setup: a profile that ends the shell does not pass for success") {
  const Home home;
  AgentSession session = home.open_node();
  write_file_atomic(home.path() / ".bashrc", "exec true\n");
  const Ran ran = run(session, list_of({mark("1")}));
  CHECK(ran.status.state == SetupState::succeeded);
  CHECK(ran_file(home) == "1\n");
  CHECK(ran.output.find("the profile ended the shell") != std::string::npos);
}

TEST_CASE("setup: stdin is empty, output may be binary, and a daemon does not hold the list") {
  const Home home;
  AgentSession session = home.open_node();
  const Ran ran = run(session, list_of({"cat; printf 'a\\000\\377b\\n'", "sleep 1000 & true"}));
  CHECK(ran.status.state == SetupState::succeeded);
  CHECK(ran.output.find(std::string("a\0\377b\n", 5)) != std::string::npos);
  // It is found as ours, and `down` ends it.
  const wire::StopReport stopped = session.stop_agents({false, 100});
  CHECK(kinds(stopped.found).contains("command"));
  CHECK(stopped.left.empty());
}

TEST_CASE("setup: names of lists cannot leave their folder") {
  const Home home;
  AgentSession session = home.open_node();
  for (const char* name : {"../x", "", "a/b", "A", ".x"}) {
    wire::StartSetup list = list_of({"true"});
    list.list = name;
    CHECK_THROWS_AS(session.start_setup(list), Error);
  }
}

TEST_CASE("probe: code, output, deadline") {
  const Home home;
  AgentSession session = home.open_node();
  wire::Probe probe;
  probe.command = "echo $X; echo no >&2; exit 4";
  probe.env = {{"X", "yes"}};
  const wire::ProbeResult result = session.probe(probe);
  CHECK(result.exit_code == 4);
  CHECK(result.tail == std::vector<std::string>{"yes", "no"});
  CHECK_FALSE(result.timed_out);
  probe.command = "echo begun; sleep 1000";
  probe.limit_ms = 500;
  const wire::ProbeResult late = session.probe(probe);
  CHECK(late.timed_out);
  CHECK(cluster_processes(home.root()).empty());
}

TEST_CASE("agents: started, seen, replaced, ended, and nothing left") {
  const Home home;
  AgentSession session = home.open();
  const wire::AgentsStarted started = bring_up(session, home);
  CHECK(started.changed);
  CHECK(kinds(started.agents).contains("watch"));
  // They are not this session's: it may go.
  session = home.open();
  const wire::NodeFound found = session.open_node(Home::node(true));
  CHECK(found.agents_current);
  CHECK(kinds(found.agents) == std::set<std::string>{"watch", "head", "node"});
  const wire::AgentsStarted same = session.start_agents({true, false});
  CHECK_FALSE(same.changed);
  CHECK(pid_of(same.agents, "head") == pid_of(found.agents, "head"));

  // The head answers over the bridge, and the node has joined it: asked until it has.
  std::string status;
  const auto until = std::chrono::steady_clock::now() + seconds(30);
  while (status.find("\"ready\"") == std::string::npos &&
         std::chrono::steady_clock::now() < until) {
    status = get_over_bridge(home, "/v1/status");
  }
  CHECK(status.find("\"ready\"") != std::string::npos);

  const wire::AgentsStarted anew = session.start_agents({true, true});
  CHECK(anew.changed);
  for (const char* what : {"watch", "head", "node"}) {
    CAPTURE(what);
    CHECK(pid_of(anew.agents, what) != 0);
    CHECK(pid_of(anew.agents, what) != pid_of(found.agents, what));
  }
  // No more than one of each.
  CHECK(anew.agents.size() == 3);

  const wire::SurveyReport before = session.survey({true});
  CHECK(before.processes.size() == 3);
  CHECK(before.files > 0);
  CHECK(before.paths.size() == 2);
  CHECK_THROWS_AS(session.remove_files({true, false}), Error);
  CHECK_FALSE(session.read_logs({true, 5}).logs.empty());

  const wire::StopReport stopped = session.stop_agents({true, 10000});
  CHECK(stopped.found.size() == 3);
  CHECK(stopped.killed.empty());
  CHECK(stopped.left.empty());
  const wire::RemoveReport removed = session.remove_files({true, false});
  CHECK(removed.left.empty());
  const wire::SurveyReport after = session.survey({true});
  CHECK(after.processes.empty());
  CHECK(after.sockets == 0);
  CHECK(after.files == 0);
  CHECK(after.paths.empty());
  CHECK_FALSE(after.port_open);
  // The last cluster of this home takes the agent along.
  CHECK_FALSE(fs::exists(home.path() / ".dtrain"));
}

TEST_CASE("agents: a killed watch is brought back without a second head") {
  const Home home;
  AgentSession session = home.open();
  const wire::AgentsStarted started = bring_up(session, home);
  const auto watch = living_watch(home.root());
  REQUIRE(watch);
  signal_process(*watch, SIGKILL);
  wait_gone(*watch, seconds(5));
  // Head and node agent start it again too: whoever is first, one of each is left.
  session.start_agents({true, false});
  const auto until = std::chrono::steady_clock::now() + seconds(30);
  wire::NodeFound now = session.open_node(Home::node(true));
  while ((!now.agents_current || now.agents.size() != 3) &&
         std::chrono::steady_clock::now() < until) {
    now = session.open_node(Home::node(true));
  }
  CHECK(now.agents_current);
  CHECK(now.agents.size() == 3);
  CHECK(pid_of(now.agents, "watch") != watch->pid);
  CHECK(session.stop_agents({true, 10000}).left.empty());
}

TEST_CASE("agents: another binary takes over") {
  const Home home;
  AgentSession session = home.open();
  bring_up(session, home);
  // As an upgrade: the same program, but another file by its content.
  auto newer = std::make_shared<AgentBinary>(*Home::binary());
  newer->content += "newer";
  LocalTransport here;
  const fs::path file = home.path() / "newer";
  write_file_atomic(file, newer->content, 0700);
  AgentSession upgraded = AgentSession::open(here, AgentBinary::load(file));
  CHECK(upgraded.sent_binary());
  const wire::NodeFound found = upgraded.open_node(Home::node(true));
  CHECK_FALSE(found.agents_current);
  const wire::AgentsStarted started = upgraded.start_agents({true, false});
  CHECK(started.changed);
  CHECK(started.agents.size() == 3);
  for (const wire::AgentProcess& process : started.agents) {
    CHECK(process.program == upgraded.hello().agent);
  }
  CHECK(upgraded.stop_agents({true, 10000}).left.empty());
  upgraded.remove_files({true, false});
  CHECK_FALSE(fs::exists(home.agents() / upgraded.hello().agent_sha256));
}

TEST_CASE("agents: binaries that nobody needs any more are removed, an hour after they came") {
  const Home home;
  const auto put = [&](const std::string& name, bool old) {
    const fs::path folder = home.agents() / name;
    make_folders(folder);
    write_file_atomic(folder / "dtrain-agent", "an agent", 0700);
    if (old) fs::last_write_time(folder, fs::file_time_type::clock::now() - std::chrono::hours(2));
    return folder;
  };
  const fs::path needed = put("needed", true);
  const fs::path idle = put("idle", true);
  const fs::path young = put("young", false);
  const paths::WatchRoot other{home.path() / ".dtrain/other-abcdef/node-0"};
  make_folders(other.root);
  write_file_atomic(other.config(), R"({"children": [{"name": "node-0", "argv": [")" +
                                        (needed / "dtrain-agent").string() + R"(", "node"]}]})");
  AgentSession session = home.open();
  bring_up(session, home);
  CHECK_FALSE(fs::exists(idle));
  CHECK(fs::exists(needed));
  CHECK(fs::exists(young));
  CHECK(fs::exists(home.agent_file()));
  CHECK(session.stop_agents({true, 10000}).left.empty());
}

TEST_CASE("agents: what another user's links lead to is none, nor what lies in provider.root") {
  const Home home;
  const fs::path mine = home.path() / "agents/thesis";
  make_folders(mine);
  write_file_atomic(mine / "text", "years");
  fs::last_write_time(mine, fs::file_time_type::clock::now() - std::chrono::hours(2));
  const fs::path spare = home.path() / "spare";
  wire::OpenNode open = Home::node(true);
  fs::path root = home.root();
  SUBCASE("the spare folder is a link") {
    fs::create_directory_symlink(home.path(), spare);
  }
  SUBCASE("what is in it is a link") {
    make_folders(spare);
    fs::create_directory_symlink(home.path() / "agents", spare / "agents");
  }
  SUBCASE("it is another's") {
    if (::geteuid() != 0) {
      MESSAGE("skipped: a folder of another user needs root");
      return;
    }
    make_folders(spare);
    fs::rename(home.path() / "agents", spare / "agents");
    REQUIRE(::chown(spare.c_str(), 12345, 12345) == 0);
  }
  SUBCASE("the clusters' folder has one of that name") {
    open.base = "~";
    root = home.path() / "lab-abcdef/node-0";
  }
  const fs::path text = fs::exists(mine) ? mine / "text" : spare / "agents/thesis/text";
  AgentSession session = home.open();
  const wire::NodeFound found = session.open_node(open);
  CHECK(found.root == root.string());
  session.init_head({"lab", "ssh", 1, 0});
  wire::ConfigureNode parts;
  parts.certificates = session.sign(NodeId("node-0"), found.request);
  parts.node_config =
      nlohmann::json{{"cluster", "lab-abcdef"},
                     {"node", "node-0"},
                     {"address", "127.0.0.1"},
                     {"head", {{"file", (root.parent_path() / "head/head.json").string()}}}}
          .dump();
  session.configure(parts);
  CHECK(session.start_agents({true, false}).warning.empty());
  CHECK(fs::exists(text));
  CHECK(session.stop_agents({true, 10000}).left.empty());
  CHECK(session.remove_files({true, false}).left.empty());
  CHECK(fs::exists(text));
}

TEST_CASE("remove: files are kept without their keys") {
  const Home home;
  AgentSession session = home.open();
  bring_up(session, home);
  session.stop_agents({true, 10000});
  write_file_atomic(home.root() / "jobs.txt", "of a job");
  const wire::RemoveReport removed = session.remove_files({true, true});
  CHECK(removed.left.empty());
  CHECK(removed.kept == (home.path() / ".dtrain/kept/lab-abcdef").string());
  CHECK(read_file(fs::path(removed.kept) / "node-0/jobs.txt") == "of a job");
  CHECK(fs::exists(fs::path(removed.kept) / "head/head.db"));
  CHECK_FALSE(fs::exists(fs::path(removed.kept) / "head/ca"));
  CHECK_FALSE(fs::exists(fs::path(removed.kept) / "node-0/identity"));
  CHECK_FALSE(fs::exists(home.path() / ".dtrain/lab-abcdef"));
  CHECK(session.find_clusters({"", ""}).clusters.empty());
}

TEST_CASE("remove: another cluster of this home is not touched") {
  const Home home;
  AgentSession session = home.open_node();
  AgentSession other = home.open();
  wire::OpenNode open = Home::node();
  open.cluster = ClusterId("other-abcdef");
  other.open_node(open);
  CHECK(session.remove_files({true, false}).left.empty());
  CHECK_FALSE(fs::exists(home.root()));
  CHECK(fs::exists(home.path() / ".dtrain/other-abcdef/node-0"));
  CHECK(fs::exists(home.agent_file()));
}

TEST_CASE("session: a machine that is gone makes the session unusable, and says so") {
  const Home home;
  AgentSession session = home.open_node();
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::error_code none;
    if (fs::read_symlink(entry.path() / "exe", none) == home.agent_file()) {
      ::kill(std::stoi(entry.path().filename().string()), SIGKILL);
    }
  }
  CHECK_THROWS_AS(session.survey({false}), Error);
  CHECK_FALSE(session.usable());
  CHECK_THROWS_AS(session.survey({false}), Error);
}
