#include "cli/signals.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <stop_token>
#include <thread>

#include <CLI/CLI.hpp>

#include "cli/bring_up.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/remote/ssh/prompter.hpp"
#include "tests/support/fake_cloud.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::cli;

namespace {

// How a process of its own ends that does `body`, and then leaves with 0. `type` is typed at its
// terminal once `prompt` stands there. What is typed after it is shown.
int ends(const std::function<void()>& body, const std::string& prompt = "",
         const std::string& type = "") {
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  REQUIRE(pid >= 0);
  if (pid == 0) {
    body();
    ::_exit(0);
  }
  std::string said;
  char bytes[4096];
  bool typed = false;
  ssize_t count = 0;
  while ((count = ::read(terminal, bytes, sizeof bytes)) > 0) {
    said.append(bytes, static_cast<std::size_t>(count));
    if (typed || said.find(prompt) == std::string::npos) continue;
    typed = true;
    REQUIRE(::write(terminal, type.data(), type.size()) == static_cast<ssize_t>(type.size()));
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  termios left{};
  REQUIRE(::tcgetattr(terminal, &left) == 0);
  CHECK((left.c_lflag & ECHO) != 0);
  ::close(terminal);
  INFO(said);
  CHECK(said.find(prompt) != std::string::npos);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("a closed terminal is heard of, but not by what nohup has started") {
  for (const bool nohup : {false, true}) {
    CAPTURE(nohup);
    CHECK(ends([nohup] {
            ::signal(SIGHUP, nohup ? SIG_IGN : SIG_DFL);
            Signals signals({SIGINT, SIGHUP});
            ::kill(::getpid(), SIGHUP);
            ::_exit(signals.next() == (nohup ? 0 : SIGHUP) ? 3 : 4);
          }) == 3);
  }
}

TEST_CASE("signals that are watched end nothing, unless they are let through") {
  CHECK(ends([] {
          const Signals signals({SIGINT});
          ::kill(::getpid(), SIGINT);
        }) == 0);
  CHECK(ends([] {
          const Signals signals({SIGINT});
          const LetThrough through(signals);
          ::kill(::getpid(), SIGINT);
        }) == 128 + SIGINT);
  CHECK(ends([] {
          const Signals signals({SIGINT});
          { const LetThrough through(signals); }
          ::kill(::getpid(), SIGINT);
        }) == 0);
}

TEST_CASE(
    "a reader that has stopped is left when a signal comes; a window that changed is told later") {
  std::array<int, 2> ends_of_pipe{};
  REQUIRE(::pipe2(ends_of_pipe.data(), O_CLOEXEC) == 0);
  const UniqueFd reader(ends_of_pipe[0]);
  UniqueFd writer(ends_of_pipe[1]);
  Signals signals({SIGINT, SIGWINCH});
  write_interruptible(writer.get(), "all of it", signals);
  const auto room = static_cast<std::size_t>(::fcntl(writer.get(), F_GETPIPE_SZ));
  const std::string much(2 * room, 'x');
  ::raise(SIGWINCH);
  ::raise(SIGINT);
  try {
    write_interruptible(writer.get(), much, signals);
    FAIL("nobody reads");
  } catch (const Interrupted& left) {
    CHECK(left.signal == SIGINT);
  }
  // The first of it is there, and whole pages of it.
  int held = 0;
  REQUIRE(::ioctl(reader.get(), FIONREAD, &held) == 0);
  CHECK(held > 9);
  CHECK((held - 9) % PIPE_BUF == 0);

  std::jthread reading([&] {
    std::string got(room, '\0');
    while (::read(reader.get(), got.data(), got.size()) > 0) {
    }
  });
  ::raise(SIGWINCH);
  write_interruptible(writer.get(), much, signals);
  CHECK(signals.next() == SIGWINCH);
  writer.reset();
}

TEST_CASE("Ctrl-C where a passphrase is asked for ends the asking, or all") {
  const auto ask = [](const std::stop_token& stop = {}) {
    return terminal_prompter()->ask("Passphrase: ", false, stop);
  };
  CHECK(ends([&] { ::_exit(ask() == "secret" ? 7 : 1); }, "Passphrase: ", "secret\n") == 7);
  CHECK(ends([&] { ask(); }, "Passphrase: ", "secr\x03") == 128 + SIGINT);
  const auto watched = [&] {
    Signals signals({SIGINT});
    ::_exit(!ask() && signals.next() == SIGINT ? 7 : 1);
  };
  CHECK(ends(watched, "Passphrase: ", "secr\x03") == 7);
  // Whoever asked has taken the signal.
  const auto stopped = [&] {
    std::stop_source stop;
    std::optional<std::string> answer = "none yet";
    std::jthread asking([&] { answer = ask(stop.get_token()); });
    stop.request_stop();
    asking.join();
    ::_exit(answer ? 1 : 7);
  };
  CHECK(ends(stopped) == 7);
}

TEST_CASE("a window that changed ends nothing, and requests no stop") {
  CHECK(ends([] {
          Signals signals({SIGINT, SIGWINCH});
          const StopOnSignal stop(signals);
          ::kill(::getpid(), SIGWINCH);
          const bool window = signals.next_ending() == 0 && signals.next() == SIGWINCH;
          if (!window || stop.token().stop_requested()) ::_exit(1);
          ::kill(::getpid(), SIGINT);
          while (!stop.token().stop_requested()) std::this_thread::yield();
          ::_exit(signals.next_ending() == SIGINT ? 7 : 2);
        }) == 7);
}

TEST_CASE("a signal that comes before the end of watching is taken, and has requested the stop") {
  CHECK(ends([] {
          EndingSignals ending;
          ::kill(::getpid(), SIGTERM);
          if (ending.end() != SIGTERM || !ending.token().stop_requested()) ::_exit(1);
          if (ending.end() != 0) ::_exit(2);
          ::kill(::getpid(), SIGINT);
        }) == 128 + SIGINT);
  // Also one that comes while the thread ends: of two that wait, Linux gives the lower number.
  CHECK(ends([] {
          EndingSignals ending;
          const std::stop_callback late(ending.token(), [] { ::kill(::getpid(), SIGINT); });
          ::kill(::getpid(), SIGTERM);
          ::_exit(ending.end() == SIGINT ? 7 : 1);
        }) == 7);
}

TEST_CASE("Ctrl-C where up asks before it makes machines ends it, and nothing is made") {
  const testing::TemporaryFolder folder;
  const auto up = [&] {
    ::setenv("XDG_STATE_HOME", folder.path().c_str(), 1);
    ::setenv("DTRAIN_AGENT", "/bin/true", 1);
    ClusterSpec spec;
    spec.cluster_name = "c";
    spec.provider.kind = ProviderKind::aws;
    spec.node_types.emplace_back().name = spec.head_node_type = "head";
    Context context;
    context.terminal.err = true;
    UpOptions how;
    how.provider =
        std::make_shared<testing::FakeCloudProvider>(std::make_shared<testing::FakeCloud>(), "c");
    how.may_make = [&](const ClusterPlan&) { return context.ask("Make them?").value(); };
    bring_up(context, spec, how);
  };
  CHECK(ends(up, "Make them?", "\x03") == 128 + SIGINT);
  CHECK(ends(up, "Make them?", "n\n") == 0);
  CHECK(!fs::exists(folder.path() / "dtrain/clusters/c/cluster.json"));
}

TEST_CASE("Ctrl-C where down asks hosts what it would end: nothing is taken down") {
  const testing::TemporaryFolder folder;
  const auto down = [&] {
    ::setenv("XDG_STATE_HOME", folder.path().c_str(), 1);
    ::setenv("DTRAIN_AGENT", "/bin/true", 1);
    // A host that lets a connection in, and says nothing.
    const UniqueFd host(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(host.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(host.get(), 8) != 0 ||
        ::getsockname(host.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      ::_exit(9);
    }
    std::thread([&] {
      sigset_t all;
      sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
      const UniqueFd first(::accept(host.get(), nullptr, nullptr));
      std::fputs("connected\n", stderr);
      while (true) ::pause();
    }).detach();
    ClusterSpec spec;
    spec.cluster_name = "c";
    spec.provider.kind = ProviderKind::ssh;
    ClusterState state = remembered(spec, ClusterId("c-x"));
    Machine& machine = state.nodes.emplace_back();
    machine.node = NodeId("node-0");
    machine.host.emplace();
    machine.host->node = machine.node;
    machine.host->host = "127.0.0.1";
    machine.host->ssh_port = ntohs(address.sin_port);
    save_cluster(state);
    Context context;
    context.globals.cluster = "c";
    CLI::App root;
    const Verb verb = add_down(root);
    const int code = verb.run(context);
    if (!load_cluster("c")) ::_exit(8);
    ::_exit(code == 130 ? 7 : code);  // 130 is also what the signal itself makes of a process
  };
  CHECK(ends(down, "connected", "\x03") == 7);
}
