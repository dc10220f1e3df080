#include "agent/session/systemd.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "agent/session/agents.hpp"
#include "launcher/core/error.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::session;
using dtrain::testing::TemporaryFolder;

namespace {

// A home, and systemctl, loginctl and systemd-run that write down how they were called.
class FakeSystemd {
 public:
  FakeSystemd() {
    for (const char* name : {"HOME", "PATH", "XDG_CONFIG_HOME"}) {
      const char* value = ::getenv(name);
      before_[name] = value != nullptr ? value : "";
    }
    ::setenv("HOME", folder_.path().c_str(), 1);
    ::setenv("PATH", (folder_.path().string() + ":" + before_["PATH"]).c_str(), 1);
    ::unsetenv("XDG_CONFIG_HOME");
    for (const char* name : {"systemctl", "loginctl", "systemd-run"}) program(name, "exit 0");
  }
  ~FakeSystemd() {
    for (const auto& [name, value] : before_) {
      if (value.empty()) {
        ::unsetenv(name.c_str());
      } else {
        ::setenv(name.c_str(), value.c_str(), 1);
      }
    }
  }

  void program(const std::string& name, const std::string& does) const {
    write_file_atomic(folder_ / name,
                      "#!/bin/sh\necho " + name + " \"$@\" >>\"$HOME/calls\"\n" + does + "\n",
                      0700);
  }
  std::string calls() const { return read_file_if_there(folder_ / "calls").value_or(""); }
  NodePlace place() const {
    return {ClusterId("lab-abcdef"), NodeId("node-0"), folder_ / "my $base", folder_.path(),
            "/opt/50%/dtrain-agent"};
  }
  fs::path unit() const {
    return folder_ / ".config/systemd/user/dtrain-lab-abcdef-node-0.service";
  }

 private:
  TemporaryFolder folder_;
  std::map<std::string, std::string> before_;
};

}  // namespace

TEST_CASE("unit: installed, current, and removed") {
  const FakeSystemd systemd;
  const NodePlace place = systemd.place();
  CHECK_FALSE(unit_installed(place));
  CHECK(install_unit(place) == "");
  CHECK(unit_installed(place));
  CHECK(unit_current(place));
  const std::string text = read_file(systemd.unit());
  CHECK(text.find("KillMode=process\n") != std::string::npos);
  CHECK(text.find("Delegate=yes\n") != std::string::npos);
  CHECK(text.find("ExecStart=\"/opt/50%%/dtrain-agent\" watch --root \"") != std::string::npos);
  CHECK(text.find("/my $$base/lab-abcdef/node-0\"\n") != std::string::npos);
  CHECK(systemd.calls() ==
        "systemctl --user daemon-reload\n"
        "systemctl --user enable dtrain-lab-abcdef-node-0.service\n"
        "loginctl enable-linger\n");
  NodePlace upgraded = place;
  upgraded.program = "/opt/other/dtrain-agent";
  CHECK_FALSE(unit_current(upgraded));
  remove_unit(place);
  CHECK_FALSE(unit_installed(place));
  CHECK(systemd.calls().find("disable --now dtrain-lab-abcdef-node-0.service\n") !=
        std::string::npos);
}

TEST_CASE("unit: a machine without systemd for users says why, and keeps no unit") {
  const FakeSystemd systemd;
  systemd.program("systemctl", "echo Failed to connect to bus >&2; exit 1");
  try {
    install_unit(systemd.place());
    FAIL("it was installed");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::failed);
    CHECK(error.message().find("Failed to connect to bus") != std::string::npos);
    CHECK(error.hint().find("--persist") != std::string::npos);
  }
  CHECK_FALSE(unit_installed(systemd.place()));
}

TEST_CASE("unit: a user who may not linger is told") {
  const FakeSystemd systemd;
  systemd.program("loginctl", "exit 1");
  CHECK(install_unit(systemd.place()).find("may not linger") != std::string::npos);
}

TEST_CASE("persist: off where it never was on is nothing") {
  const FakeSystemd systemd;
  const wire::PersistReport report = persist(systemd.place(), false, {});
  CHECK_FALSE(report.on);
  CHECK(systemd.calls().empty());
}

TEST_CASE("scope: the watch is started outside of the login") {
  const FakeSystemd systemd;
  const auto argv = in_scope(systemd.place(), {"/a", "watch"});
  CHECK(argv.front() == "systemd-run");
  CHECK(std::vector<std::string>(argv.end() - 3, argv.end()) ==
        std::vector<std::string>{"--", "/a", "watch"});
}
