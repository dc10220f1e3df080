#include "cli/signals.hpp"

#include <doctest/doctest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "cli/bring_up.hpp"
#include "launcher/core/paths.hpp"
#include "tests/support/fake_cloud.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::cli;

namespace {

// How a process of its own ends that does `body`, and then leaves with 0. `type` is typed at its
// terminal once `prompt` stands there.
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
  ::close(terminal);
  INFO(said);
  CHECK(said.find(prompt) != std::string::npos);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

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
