#include "agent/profiler/stacks.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include "agent/profiler/snapshot.hpp"
#include "agent/profiler/unwinder.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/pipe.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"

using namespace dtrain;
using namespace dtrain::profiler;

namespace {

// One of tests/agent/profiler/target.cpp; it ends with this.
class Program {
 public:
  explicit Program(std::vector<std::string> env = {}) {
    auto in = make_pipe();
    auto out = make_pipe();
    SpawnOptions options;
    options.argv = {TARGET};
    options.env = std::move(env);
    options.stdin_fd = in[0].get();
    options.stdout_fd = out[1].get();
    pid_ = spawn(options);
    in_ = std::move(in[1]);
    out[1].reset();
    char byte = 0;
    while (::read(out[0].get(), &byte, 1) == 1 && byte != '\n') {
    }
    REQUIRE(byte == '\n');
  }
  ~Program() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    dtrain::wait(pid_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  ProcessExit end() {
    in_.reset();
    return dtrain::wait(std::exchange(pid_, 0));
  }

 private:
  pid_t pid_ = 0;
  UniqueFd in_;
};

bool may_be_traced(const Program& program) {
  try {
    take_snapshot(program.pid());
    return true;
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::denied);
    CHECK(!error.hint().empty());
    MESSAGE("not tried: " << error.message());
    return false;
  }
}

std::set<std::string> functions(const nlohmann::json& thread) {
  std::set<std::string> names;
  for (const nlohmann::json& frame : thread["frames"]) {
    std::string name = frame.value("function", "");
    if (name.starts_with("(anonymous namespace)::")) name.erase(0, 23);
    names.insert(name.substr(0, name.find('(')));
  }
  return names;
}

}  // namespace

TEST_CASE("each thread's frames, to its beginning, and the program goes on") {
  Program program;
  if (!may_be_traced(program)) return;
  for (int round = 0; round < 20; ++round) take_snapshot(program.pid());
  std::vector<nlohmann::json> all;
  do {  // let go a moment ago it may not be back in its call
    all = stacks_of({{.pid = program.pid()}});
    REQUIRE(all.size() == 1);
    REQUIRE(all.front().value("threads", nlohmann::json::array()).size() == 3);
  } while (!all.front()["threads"][0].contains("system_call"));
  const nlohmann::json& process = all.front();
  INFO(process.dump(1));
  CHECK(!process.contains("error"));
  const nlohmann::json& threads = process["threads"];
  CHECK(threads[0]["tid"] == program.pid());
  CHECK(functions(threads[0]).contains("reads_stdin"));
  CHECK(functions(threads[0]).contains("main"));
  CHECK(threads[0]["system_call"] == "read");
  CHECK(threads[0]["frames"].size() > 22);
  std::set<std::string> others;
  for (int i : {1, 2}) others.merge(functions(threads[i]));
  CHECK(others.contains("computes"));
  CHECK(others.contains("waits_for_a_lock"));
  for (const nlohmann::json& thread : threads) CHECK(!thread.contains("cut"));
  // Where the code has lines.
  bool has_line = false;
  for (const nlohmann::json& frame : threads[0]["frames"]) {
    has_line =
        has_line || (frame.value("file", "").ends_with("target.cpp") && frame.value("line", 0) > 0);
  }
  CHECK(has_line);
  const ProcessExit end = program.end();
  CHECK(end.code == 0);
}

TEST_CASE("a stack that is larger than what is copied is cut, and says so") {
  Program program;
  if (!may_be_traced(program)) return;
  SnapshotLimits limits;
  limits.stack = 256;
  const ProcessSnapshot snapshot = take_snapshot(program.pid(), limits);
  CHECK(snapshot.threads.front().stack.size() == 256);
  REQUIRE(snapshot.threads.size() == 3);
  std::string cut;
  const std::vector<Frame> frames = Unwinder(program.pid()).frames(snapshot.threads.front(), cut);
  CHECK(!frames.empty());
  CHECK(frames.size() < 20);
  CHECK(!cut.empty());
}

TEST_CASE("a program that is stopped stays so, and one that gets a signal meanwhile has it") {
  Program program;
  if (!may_be_traced(program)) return;
  ::kill(program.pid(), SIGSTOP);
  siginfo_t stopped{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(program.pid()), &stopped, WSTOPPED) == 0);
  const ProcessSnapshot snapshot = take_snapshot(program.pid());
  CHECK(snapshot.threads.size() == 3);
  CHECK(snapshot.threads.front().why_not == "");
  // It goes back to where it stood as soon as it gets the processor.
  while (process_stat(program.pid())->state != 'T') std::this_thread::yield();
  ::kill(program.pid(), SIGTERM);
  take_snapshot(program.pid());
  ::kill(program.pid(), SIGCONT);
  CHECK(program.end().signal == SIGTERM);
}

TEST_CASE("what is gone, and what another traces") {
  Program program;
  if (!may_be_traced(program)) return;
  auto said = make_pipe();
  const pid_t tracer = ::fork();
  if (tracer == 0) {
    const bool is_held = ::ptrace(PTRACE_SEIZE, program.pid(), nullptr, nullptr) == 0;
    if (!is_held || ::write(said[1].get(), "+", 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  said[1].reset();
  char byte = 0;
  REQUIRE(::read(said[0].get(), &byte, 1) == 1);
  const ProcessSnapshot held = take_snapshot(program.pid());
  CHECK(held.threads.front().why_not == "process " + std::to_string(tracer) + " traces it already");
  CHECK(held.threads.at(1).why_not == "");
  ::kill(tracer, SIGKILL);
  dtrain::wait(tracer);
  const pid_t pid = program.pid();
  program.end();
  try {
    take_snapshot(pid);
    FAIL("there is nothing to look at");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::not_found);  // what a rank has started may end so
  }
}

TEST_CASE("processes of an attempt's ranks are found by their environment") {
  const auto environment = [](const std::string& job, int rank, int attempt) {
    return std::vector<std::string>{"DTRAIN_JOB_ID=" + job, "RANK=" + std::to_string(rank),
                                    "DTRAIN_ATTEMPT=" + std::to_string(attempt)};
  };
  Program first(environment("stacks-aaaaaa", 1, 3));
  Program second(environment("stacks-aaaaaa", 0, 3));
  Program before(environment("stacks-aaaaaa", 0, 2));
  Program none({"DTRAIN_JOB_ID=stacks-aaaaaa"});
  Program other(environment("stacks-bbbbbb", 0, 3));
  const std::vector<Target> found = processes_of("stacks-aaaaaa", 3, {});
  REQUIRE(found.size() == 2);
  CHECK(found[0].pid == second.pid());
  CHECK(found[0].rank == 0);
  CHECK(found[0].attempt == 3);
  CHECK(found[1].pid == first.pid());
  CHECK(processes_of("stacks-aaaaaa", 3, {1, 5}).size() == 1);
  CHECK(processes_of("stacks-cccccc", 3, {}).empty());
}

TEST_CASE("what a rank has started is that rank's, whatever it calls itself") {
  Program program({"DTRAIN_JOB_ID=stacks-dddddd", "RANK=4", "DTRAIN_ATTEMPT=1", "CHILD=1"});
  std::vector<Target> found;
  for (int i = 0; i < 10000 && found.size() != 2; ++i) {  // it may be in the middle of exec
    found = processes_of("stacks-dddddd", 1, {4});
  }
  REQUIRE(found.size() == 2);
  CHECK(found[0].pid == program.pid());
  CHECK(found[0].is_first);
  CHECK(!found[1].is_first);
  CHECK(found[1].rank == 4);
  CHECK(processes_of("stacks-dddddd", 1, {0}).empty());
}

TEST_CASE("threads that come and go are no reason to refuse the others") {
  Program program({"THREADS=1"});
  if (!may_be_traced(program)) return;
  for (int round = 0; round < 100; ++round) {
    CHECK(take_snapshot(program.pid()).threads.front().why_not == "");
  }
  CHECK(program.end().code == 0);
}
