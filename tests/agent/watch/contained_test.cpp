#include "agent/watch/contained.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>

#include "agent/watch/watch.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/wire/json.hpp"
#include "tests/agent/watch/eventually.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace std::chrono_literals;

namespace {

// A contained watch in a process of its own, over children that are shell scripts. What they write
// is in files of the folder.
struct Contained {
  testing::TemporaryFolder folder;
  pid_t pid = 0;

  // `scripts`: by name; "head" is what the watch takes for one. `before`: with the folder, before
  // the watch is started on it.
  Contained(const std::vector<std::pair<std::string, std::string>>& scripts,
            std::chrono::milliseconds limit,
            const std::function<void(const fs::path&)>& before = {}) {
    nlohmann::json children = nlohmann::json::array();
    for (const auto& [name, script] : scripts) {
      const fs::path file = folder / (name + ".sh");
      write_file_atomic(file, "#!/bin/sh\ncd " + folder.path().string() + "\n" + script + "\n",
                        0755);
      children.push_back({{"name", name}, {"argv", {file.string(), name}}});
    }
    write_file_atomic(folder / "watch.json", nlohmann::json{{"children", children}}.dump());
    if (before) before(folder.path());
    pid = ::fork();
    if (pid != 0) return;
    const UniqueFd out = open_file(folder / "stdout", O_WRONLY | O_CREAT);
    ::dup2(out.get(), STDOUT_FILENO);
    int code = 100;
    try {
      code = watch::watch_main({folder.path()}, limit);
    } catch (const Error&) {
      code = 101;
    }
    ::_exit(code);
  }
  ~Contained() {
    if (pid == 0) return;
    ::kill(pid, SIGKILL);
    (void)wait(pid);
  }

  std::string read(const std::string& name) const {
    return read_file_if_there(folder / name).value_or("");
  }
  void wait_for(const std::string& name, const std::string& text) const {
    REQUIRE(eventually([&] { return read(name) == text; }));
  }
  ProcessExit wait_end() {
    const auto exit =
        wait_until(pid, std::chrono::steady_clock::now() + dtrain::testing::kPatience);
    REQUIRE(exit.has_value());
    pid = 0;
    return *exit;
  }
  ProcessExit end() {
    const ProcessExit exit = wait_end();
    CHECK_FALSE(fs::exists(folder / "watch.pid"));
    return exit;
  }
  pid_t pid_in(const std::string& name) const { return std::stoi(read(name)); }
};

constexpr const char* kAnotherBoot = "6e5ff7f5-5d3f-4c39-a8b4-2f4a6a3c1f11";

// What watch.pid holds of a watch of that boot.
std::string pid_of_boot(const std::string& boot) {
  return nlohmann::json{{"pid", 1}, {"start_time", 1}, {"boot_id", boot}, {"end_within_ms", 28000}}
      .dump();
}

// A node agent that does `then` when it is told to end, and says so in the file "told".
std::string node(const std::string& then) {
  return "trap 'echo hurry >>hurry; exit 0' QUIT\ntrap 'echo $DTRAIN_CONTAINED >>told; " + then +
         "' TERM INT\necho up >>up\nwhile :; do sleep 0.01; done";
}

}  // namespace

TEST_CASE("what a contained watch tells its children") {
  CHECK_FALSE(watch::from_environment());
  for (const char* wrong : {"", "1", "1 2", "1 x 3", "x 1 2", "1 2 x", "1 2 3 4"}) {
    ::setenv(watch::kContained, wrong, 1);
    CHECK_FALSE(watch::from_environment());
  }
  ::setenv(watch::kContained, watch::to_environment({28s, SIGTERM, 5}).c_str(), 1);
  const auto contained = watch::from_environment();
  ::unsetenv(watch::kContained);
  REQUIRE(contained);
  CHECK(contained->limit == 28s);
  CHECK(contained->told == SIGTERM);
  CHECK(contained->why == 5);
  const UniqueFd why(watch::make_why());
  CHECK(watch::read_why(why.get()).empty());
  watch::write_why(why.get(), "its container ends");
  CHECK(watch::read_why(why.get()) == "its container ends");
  CHECK(watch::read_why(-1).empty());
}

TEST_CASE("all that descends from a process is ended and reaped, however it was left") {
  const testing::TemporaryFolder folder;
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    SpawnOptions options;
    // A daemon that ends when it is asked to, its child that does not, and one that has ended.
    options.argv = {"/bin/sh", "-c",
                    "cd " + folder.path().string() +
                        "; (setsid sh -c \"trap 'echo asked >asked; exit' TERM; "
                        "sh -c 'trap : TERM; echo up >up; while :; do sleep 0.01; done' & "
                        "while :; do sleep 0.01; done\" &); (true &); exit 0"};
    spawn(options);
    fs::current_path(folder.path());
    const auto until = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
    while (!fs::exists(folder / "up")) {
      if (std::chrono::steady_clock::now() > until) ::_exit(1);
      std::this_thread::yield();
    }
    watch::Leftovers leftovers;
    const auto begun = std::chrono::steady_clock::now();
    const auto passed = [&] { return std::chrono::steady_clock::now() - begun; };
    while (leftovers.end(fs::exists("asked") && passed() > 200ms)) {
      while (try_wait_any()) {
      }
      if (passed() > dtrain::testing::kPatience) ::_exit(2);
      std::this_thread::yield();
    }
    ::_exit(read_file("/proc/self/task/" + std::to_string(::getpid()) + "/children").empty() ? 0
                                                                                             : 3);
  }
  CHECK(wait(pid).code == 0);
  CHECK(fs::exists(folder / "asked"));
}

TEST_CASE("a contained watch reaps what is left to it") {
  Contained contained({{"node", "(sh -c 'echo $$ >orphan; exit 3' &)\n" + node("exit 0")}}, 20s);
  REQUIRE(eventually([&] { return contained.read("orphan").ends_with("\n"); }));
  REQUIRE(eventually([&] { return !process_stat(contained.pid_in("orphan")).has_value(); }));
  contained.wait_for("up", "up\n");
  ::kill(contained.pid, SIGTERM);
  CHECK(contained.end().code == 0);
}

TEST_CASE("a contained watch ends nodes, then heads, then all else, and itself last") {
  Contained contained({{"head",
                        "trap 'echo head >>order; exit 0' TERM\necho head >>heads\n"
                        "while :; do sleep 0.01; done"},
                       {"node", "(setsid sh -c 'echo $$ >daemon; exec sleep 1000' &)\n" +
                                    node("sleep 0.2; echo node >>order; exit 0")}},
                      20s);
  contained.wait_for("up", "up\n");
  contained.wait_for("heads", "head\n");
  REQUIRE(eventually([&] { return contained.read("daemon").ends_with("\n"); }));
  SUBCASE("by SIGTERM") {
    ::kill(contained.pid, SIGTERM);
  }
  SUBCASE("by SIGINT") {
    ::kill(contained.pid, SIGINT);
  }
  CHECK(contained.end().code == 0);
  CHECK(contained.read("order") == "node\nhead\n");
  CHECK_FALSE(process_stat(contained.pid_in("daemon")).has_value());
  CHECK(contained.read("heads") == "head\n");  // none was started again
  const std::string said = contained.read("stdout");
  CHECK(said.find("told to end (SIG") != std::string::npos);
  CHECK(said.find("node ended: exit code 0\n") != std::string::npos);
  CHECK(said.ends_with("all has ended, and the head knows\n"));
}

TEST_CASE("the exit code of a contained watch") {
  SUBCASE("is what a node agent failed with") {
    Contained contained({{"node", node("exit 7")}}, 20s);
    contained.wait_for("up", "up\n");
    ::kill(contained.pid, SIGTERM);
    CHECK(contained.end().code == 7);
  }
  SUBCASE("is kCutShort when it had to kill") {
    Contained contained({{"node", node("")}}, 500ms);
    contained.wait_for("up", "up\n");
    const auto begun = std::chrono::steady_clock::now();
    ::kill(contained.pid, SIGTERM);
    CHECK(contained.end().code == watch::kCutShort);
    CHECK(std::chrono::steady_clock::now() - begun >= 450ms);
    CHECK(contained.read("stdout").find("node did not end in time and is killed") !=
          std::string::npos);
  }
  SUBCASE("is 0 when a node agent has left by itself") {
    // Its head ends by itself then, once it has told the other nodes and answered who asked for it.
    Contained contained({{"head",
                          "trap 'echo told >>head' TERM\necho $$ >pid\n"
                          "while ! [ -s left ]; do sleep 0.01; done\n"
                          "while kill -0 $(cat left) 2>/dev/null; do sleep 0.01; done\n"
                          "echo ends >ends; sleep 0.5; exit 0"},
                         {"node",
                          "while ! [ -s up -a -s pid ]; do sleep 0.01; done\n"
                          "echo $$ >left; exit 0"},
                         {"other",
                          "trap 'echo told >>other' TERM\necho up >up\n"
                          "while ! [ -s ends ]; do sleep 0.01; done; sleep 0.2; exit 0"}},
                        20s);
    CHECK(contained.end().code == 0);
    CHECK(contained.read("stdout").find("node has left: ") != std::string::npos);
    CHECK(contained.read("head").empty());
    CHECK(contained.read("other").empty());
  }
  SUBCASE("is the node agent's when it has left and its files stay") {
    Contained contained({{"node", "echo up >>up; exit 4"}}, 8s);
    CHECK(contained.end().code == watch::kLeftFiles);
    CHECK(contained.read("up") == "up\n");
  }
  SUBCASE("is 0 when the others had to be told that a node agent has left") {
    Contained contained({{"node", "while ! [ -s up ]; do sleep 0.01; done; exit 0"},
                         {"other", node("cat <&3 >other; exit 0")}},
                        40s);
    CHECK(contained.end().code == 0);
    CHECK(contained.read("other") == "node has left, which shares its container");
  }
  SUBCASE("is kCutShort when a head dies while it ends") {
    Contained contained({{"head", "echo up >>heads; exec sleep 1000"}, {"node", node("exit 0")}},
                        20s);
    contained.wait_for("up", "up\n");
    contained.wait_for("heads", "up\n");
    ::kill(contained.pid, SIGTERM);
    CHECK(contained.end().code == watch::kCutShort);
  }
}

TEST_CASE("told once more, a contained watch has its nodes hurry") {
  Contained contained({{"node", node("")}}, 1h);
  contained.wait_for("up", "up\n");
  ::kill(contained.pid, SIGTERM);
  REQUIRE(eventually([&] { return contained.read("told").ends_with("\n"); }));
  ::kill(contained.pid, SIGTERM);
  CHECK(contained.end().code == 0);
  CHECK(contained.read("hurry") == "hurry\n");
}

TEST_CASE("in its last phase a contained watch hears signals too") {
  // A node agent that failed leaves its supervisors their time: an hour here.
  Contained contained({{"node",
                        "(setsid sh -c \"trap 'echo asked >asked' TERM; echo up >daemon; "
                        "while :; do sleep 0.01; done\" &)\n" +
                            node("exit 7")}},
                      1h);
  contained.wait_for("up", "up\n");
  contained.wait_for("daemon", "up\n");
  ::kill(contained.pid, SIGTERM);
  contained.wait_for("asked", "asked\n");
  ::kill(contained.pid, SIGTERM);
  CHECK(contained.end().code == 7);
}

TEST_CASE("who ends a contained watch waits for as long as it may take, and none takes its place") {
  Contained contained({{"node", node("sleep 2.5; exit 0")}}, 20s);
  contained.wait_for("up", "up\n");
  REQUIRE(eventually([&] { return living_watch(contained.folder.path()).has_value(); }));
  CHECK_THROWS_AS(refuse_contained({contained.folder.path()}), Error);
  end_watch({contained.folder.path()});
  CHECK(contained.end().code == 0);
  CHECK_NOTHROW(refuse_contained({contained.folder.path()}));
}

TEST_CASE("a contained watch takes the place of one that holds the lock on another machine alone") {
  std::optional<std::string> boot = boot_id();
  SUBCASE("of this machine") {}
  SUBCASE("of another") {
    boot = kAnotherBoot;
  }
  SUBCASE("of another, in whose place one was before") {
    boot.reset();
  }
  std::optional<FileLock> held;
  Contained contained({{"node", node("exit 0")}}, 20s, [&](const fs::path& folder) {
    held = FileLock::try_lock(folder / "watch.lock");
    REQUIRE(held);
    if (boot) write_file_atomic(folder / "watch.pid", pid_of_boot(*boot));
  });
  if (boot == boot_id()) {
    CHECK(contained.wait_end().code == 101);
    return;
  }
  contained.wait_for("up", "up\n");
  REQUIRE(eventually([&] { return living_watch(contained.folder.path()).has_value(); }));
  ::kill(contained.pid, SIGTERM);
  CHECK(contained.end().code == 0);
}

TEST_CASE("the end of a watch whose place another has taken leaves the other's watch.pid") {
  Contained contained({{"node", node("exit 0")}}, 20s);
  contained.wait_for("up", "up\n");
  REQUIRE(eventually([&] { return living_watch(contained.folder.path()).has_value(); }));
  write_file_atomic(contained.folder / "watch.pid", pid_of_boot(kAnotherBoot));
  ::kill(contained.pid, SIGTERM);
  CHECK(contained.wait_end().code == 0);
  CHECK(contained.read("watch.pid") == pid_of_boot(kAnotherBoot));
}

TEST_CASE("a node agent that dies while it leaves is started again and told so") {
  // The first is killed by the signal, before it could do anything.
  Contained contained({{"node",
                        "echo $DTRAIN_CONTAINED >>told; [ $(wc -l <told) = 2 ] && exit 0\n"
                        "exec sleep 1000"}},
                      40s);
  REQUIRE(eventually([&] { return contained.read("told") == "40000 0 3\n"; }));
  ::kill(contained.pid, SIGTERM);
  CHECK(contained.end().code == 0);
  const std::string told = contained.read("told");
  CHECK(told.ends_with(" " + std::to_string(SIGTERM) + " 3\n"));
}

TEST_CASE("the children of a contained watch hear of its death") {
  Contained contained({{"node", "echo $$ >pid\n" + node("exit 0")}}, 20s);
  contained.wait_for("up", "up\n");
  ::kill(contained.pid, SIGKILL);
  REQUIRE(eventually([&] { return contained.read("told").ends_with("\n"); }));
  REQUIRE(eventually([&] { return !start_time(contained.pid_in("pid")).has_value(); }));
}

TEST_CASE("a reader of its lines that stands still does not hold a contained watch up") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    for (int i = 0; i < 2000; ++i) watch::say(std::string(1000, 'x'));
    ::_exit(0);
  }
  const auto exit = wait_until(pid, std::chrono::steady_clock::now() + dtrain::testing::kPatience);
  if (!exit) {
    ::kill(pid, SIGKILL);
    (void)wait(pid);
  }
  CHECK((exit && exit->ok()));
  ::close(ends[0]);
  ::close(ends[1]);
}
