#include "launcher/remote/bootstrap.hpp"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/remote/gzip.hpp"
#include "launcher/remote/relay.hpp"
#include "tests/launcher/remote/session_support.hpp"

using namespace dtrain;
using namespace dtrain::testing;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// A program in a folder that is put before PATH.
class FakeProgram {
 public:
  FakeProgram(const fs::path& folder, const std::string& name, const std::string& body)
      : path_("PATH", folder.string() + ":" + ::getenv("PATH")) {
    write_file_atomic(folder / name, "#!/bin/sh\n" + body, 0700);
  }

 private:
  VariableIs path_;
};

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

}  // namespace

TEST_CASE("bootstrap: the script stands in single quotes of every shell") {
  const std::string script = bootstrap_script();
  for (const char c : {'\'', '\\', '!', '\n'}) CHECK(script.find(c) == std::string::npos);
}

TEST_CASE("bootstrap: the agent is sent where it is missing, and once") {
  const Home home;
  CHECK(home.open().sent_binary());
  CHECK(sum_file(home.agent_file()).sha256 == Home::binary()->sha256);
  struct stat status {};
  REQUIRE(::stat(home.agent_file().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  REQUIRE(::stat((home.path() / ".dtrain").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);

  const AgentSession again = home.open();
  CHECK_FALSE(again.sent_binary());
  CHECK(again.hello().agent_sha256 == Home::binary()->sha256);
  CHECK(again.hello().agent == home.agent_file().string());
  CHECK(names_in(home.agent_file().parent_path()) == std::vector<std::string>{"dtrain-agent"});
}

TEST_CASE("bootstrap: a damaged agent is sent anew") {
  const Home home;
  make_folders(home.agent_file().parent_path());
  std::string damaged;
  SUBCASE("empty") {}
  SUBCASE("cut off") {
    damaged = Home::binary()->content.substr(0, 100000);
  }
  SUBCASE("no program") {
    damaged = "#!/bin/sh\necho nonsense of some length\n";
  }
  SUBCASE("one that fails") {
    damaged = "#!/bin/sh\nexit 3\n";
  }
  SUBCASE("one byte more") {
    damaged = Home::binary()->content + "x";
  }
  write_file_atomic(home.agent_file(), damaged, 0700);
  const AgentSession session = home.open();
  CHECK(session.sent_binary());
  CHECK(sum_file(home.agent_file()).sha256 == Home::binary()->sha256);
}

TEST_CASE("bootstrap: one that says another sum is sent once more, not for ever") {
  const Home home;
  // Speaks as a session does, but is another file than it was named.
  auto other = std::make_shared<AgentBinary>(*Home::binary());
  other->sha256 = std::string(64, 'a');
  LocalTransport here;
  try {
    AgentSession::open(here, other);
    FAIL("it was taken for what it is not");
  } catch (const Error& error) {
    CHECK(error.message().find("not the file that was sent") != std::string::npos);
  }
}

TEST_CASE("bootstrap: from every login shell, after a noisy profile") {
  const std::string noise = "echo welcome to the lab; printf 'mail: no newline'; ";
  int tried = 0;
  for (const std::string shell : {"bash", "dash", "zsh", "fish", "tcsh", "ksh"}) {
    std::string program;
    for (const char* folder : {"/bin/", "/usr/bin/"}) {
      if (::access((folder + shell).c_str(), X_OK) == 0) program = folder + shell;
    }
    if (program.empty()) {
      MESSAGE("skipped: there is no " << shell << " here");
      continue;
    }
    ++tried;
    CAPTURE(shell);
    const Home home;
    ShellTransport login(program, noise);
    CHECK(AgentSession::open(login, Home::binary()).sent_binary());
    CHECK_FALSE(AgentSession::open(login, Home::binary()).sent_binary());
  }
  CHECK(tried >= 2);
}

TEST_CASE("bootstrap: busybox is enough") {
  const Home home;
  if (::access("/bin/busybox", X_OK) != 0 && ::access("/usr/bin/busybox", X_OK) != 0) {
    MESSAGE("skipped: there is no busybox here");
    return;
  }
  const TemporaryFolder tools;
  for (const char* name : {"sh", "uname", "id", "mkdir", "chmod", "head", "wc", "mv", "rm"}) {
    const char* busybox = ::access("/bin/busybox", X_OK) == 0 ? "/bin/busybox" : "/usr/bin/busybox";
    fs::create_symlink(busybox, tools / name);
  }
  const VariableIs path("PATH", tools.path().string());
  ShellTransport login((tools / "sh").string());
  CHECK(AgentSession::open(login, Home::binary()).sent_binary());
}

TEST_CASE("bootstrap: where there is no gzip it comes as it is") {
  const Home home;
  const TemporaryFolder tools;
  for (const char* name : {"sh", "uname", "id", "mkdir", "chmod", "head", "wc", "mv", "rm"}) {
    for (const char* folder : {"/bin/", "/usr/bin/"}) {
      const fs::path program = std::string(folder) + name;
      if (fs::exists(program) && !fs::exists(tools / name))
        fs::create_symlink(program, tools / name);
    }
  }
  const VariableIs path("PATH", tools.path().string());
  ShellTransport login((tools / "sh").string());
  CHECK(AgentSession::open(login, Home::binary()).sent_binary());
  CHECK(sum_file(home.agent_file()).sha256 == Home::binary()->sha256);
}

TEST_CASE("bootstrap: one host gives it to the next") {
  SpreadLimits limits;
  limits.seeds = 1;
  limits.loopback = true;
  std::vector<std::string> said;
  AgentSessionOptions options;
  options.spread = std::make_shared<Spread>(limits, std::stop_token(),
                                            [&](const std::string& host, const std::string& words) {
                                              said.push_back(host + " " + words);
                                            });
  const auto log_in = [&](const TemporaryFolder& home, const std::string& name,
                          const char* connection) {
    ShellTransport login("/bin/sh", "HOME=" + home.path().string() +
                                        "; export HOME; SSH_CONNECTION=" + std::string(connection) +
                                        "; export SSH_CONNECTION; ");
    options.name = name;
    AgentSession session = AgentSession::open(login, Home::binary(), options);
    CHECK(session.sent_binary());
    const fs::path folder = home / ".dtrain/agents" / Home::binary()->sha256;
    CHECK(sum_file(folder / "dtrain-agent").sha256 == Home::binary()->sha256);
    CHECK(names_in(folder) == std::vector<std::string>{"dtrain-agent"});
    return session;
  };
  const TemporaryFolder one;
  const TemporaryFolder two;
  const TemporaryFolder three;
  const AgentSession first = log_in(one, "one", "\"127.0.0.1 9 127.0.0.1 22\"");
  const AgentSession second = log_in(two, "two", "\"127.0.0.1 9 127.0.0.1 22\"");
  // One of whom nobody knows where it is can take, and not give.
  const AgentSession third = log_in(three, "three", "");
  CHECK(said ==
        std::vector<std::string>{"one from this machine", "two from one", "three from one"});
}

TEST_CASE("bootstrap: a relay that does not run there is done without") {
  const Home home;
  const TemporaryFolder tools;
  // What the relay becomes executable by; the agent's file is made so before.
  const FakeProgram chmod(tools.path(), "chmod",
                          "case $2 in *.r) exit 1;; *) exec /bin/chmod \"$@\";; esac\n");
  AgentSessionOptions options;
  options.spread =
      std::make_shared<Spread>(SpreadLimits(), std::stop_token(), [](auto&&, auto&&) {});
  LocalTransport here;
  CHECK(AgentSession::open(here, Home::binary(), options).sent_binary());
  CHECK(names_in(home.agent_file().parent_path()) == std::vector<std::string>{"dtrain-agent"});
}

TEST_CASE("bootstrap: other machines are refused by name before anything is sent") {
  const Home home;
  const TemporaryFolder tools;
  std::string says;
  SUBCASE("another architecture") {
    says = "Linux 6.1.0 aarch64";
  }
  SUBCASE("another system") {
    says = "Darwin 23.1.0 arm64";
  }
  const FakeProgram uname(tools.path(), "uname", "echo " + says + "\n");
  LocalTransport here;
  try {
    AgentSession::open(here, Home::binary());
    FAIL("it was taken");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::conflict);
    CHECK(error.message().find(says.substr(says.rfind(' ') + 1)) != std::string::npos);
  }
  CHECK_FALSE(fs::exists(home.path() / ".dtrain"));
}

TEST_CASE("bootstrap: a shell that says nothing, or ends") {
  const Home home;
  AgentSessionOptions options;
  SUBCASE("waits for ever") {
    ShellTransport login("/bin/sh", "echo please wait; exec sleep 1000; ");
    bool said = false;
    // Again with more time where a busy machine did not let it begin.
    for (const int limit_ms : {300, 3000, 30000}) {
      options.open_limit = milliseconds(limit_ms);
      try {
        AgentSession::open(login, Home::binary(), options);
        FAIL("it answered");
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::timeout);
        said = error.message().find("please wait") != std::string::npos;
      }
      if (said) break;
    }
    CHECK(said);
  }
  SUBCASE("ends with a reason") {
    ShellTransport login("/bin/sh", "echo this account is not available >&2; exit 1; ");
    options.open_limit = seconds(30);
    try {
      AgentSession::open(login, Home::binary(), options);
      FAIL("it answered");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::failed);
      CHECK(error.message().find("this account is not available") != std::string::npos);
    }
  }
  SUBCASE("prints without end") {
    options.open_limit = seconds(30);
    ShellTransport login("/bin/sh", "yes; ");
    CHECK_THROWS_AS(AgentSession::open(login, Home::binary(), options), Error);
  }
}

TEST_CASE("bootstrap: a connection that breaks in the middle leaves nothing to be started") {
  const Home home;
  auto half = std::make_shared<AgentBinary>(*Home::binary());
  half->content.resize(half->content.size() / 2);
  LocalTransport here;
  const std::string whole = std::to_string(Home::binary()->content.size());
  std::string begin = "plain " + whole + "\n";
  SUBCASE("plain") {}
  SUBCASE("compressed") {
    const std::string packed = gzip_of(Home::binary()->content);
    begin = "gzip " + std::to_string(packed.size()) + "\n";
    half->content = packed.substr(0, packed.size() / 2);
  }
  SUBCASE("the relay") {
    begin = "relay " + std::to_string(relay_program().size()) + "\n";
    half->content = relay_program().substr(0, relay_program().size() / 2);
  }
  SUBCASE("a relay that would run as far as it came") {
    begin = "relay 4096\n";
    half->content = "#!/bin/sh\ntouch ~/ran\n";
  }
  SUBCASE("what the relay is told") {
    begin = "relay " + std::to_string(relay_program().size()) + "\n";
    half->content = relay_program();
  }
  const auto channel = here.open(
      {"/bin/sh", "-c", bootstrap_script(), "dtrain", "marker", half->sha256, whole, "0"});
  std::string said(7, '\0');
  REQUIRE(::recv(channel->fd(), said.data(), said.size(), MSG_WAITALL) == 7);
  CHECK(said == "marker ");
  write_all(channel->fd(), begin + half->content);
  ::shutdown(channel->fd(), SHUT_WR);
  CHECK(channel->wait(seconds(30)) == 93);
  CHECK_FALSE(fs::exists(home.path() / "ran"));
  CHECK(names_in(home.agent_file().parent_path()).empty());
  CHECK(home.open().sent_binary());
}

TEST_CASE("bootstrap: several at once, into one home") {
  const Home home;
  Home::binary();
  std::vector<std::thread> threads;
  std::vector<std::string> failures(4);
  for (std::string& failure : failures) {
    threads.emplace_back([&] {
      try {
        home.open();
      } catch (const Error& error) {
        failure = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) CHECK(failure == "");
  CHECK(names_in(home.agent_file().parent_path()) == std::vector<std::string>{"dtrain-agent"});
}

TEST_CASE("bootstrap: a full disk is said as such") {
  const Home home;
  // In a mount namespace of a child, so that nothing of it stays.
  const std::string script = "mount -t tmpfs -o size=1m tmpfs \"$HOME\" && ";
  LocalTransport here;
  if (!here.run({"unshare", "-m", "sh", "-c", script + "true"}, "", seconds(10)).exit.ok()) {
    MESSAGE("skipped: mounting a small tmpfs needs root");
    return;
  }
  class FullDisk final : public Transport {
   public:
    explicit FullDisk(std::string before) : before_(std::move(before)) {}
    std::unique_ptr<Channel> open(const std::vector<std::string>& argv) override {
      return here_.open({"unshare", "-m", "sh", "-c", before_ + shell_join(argv)});
    }
    Captured run(const std::vector<std::string>& a, std::string_view i, milliseconds d) override {
      return here_.run(a, i, d);
    }
    void put(std::string_view c, const fs::path& p, mode_t m) override { here_.put(c, p, m); }
    void start_detached(const std::vector<std::string>& a) override { here_.start_detached(a); }
    fs::path head_socket(const HeadPlace& head) override { return here_.head_socket(head); }

   private:
    LocalTransport here_;
    std::string before_;
  } full(script);
  try {
    AgentSession::open(full, Home::binary());
    FAIL("it found room");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::exhausted);
    CHECK(error.message().find("No space left") != std::string::npos);
  }
}

TEST_CASE("bootstrap: a home that cannot hold it, or may not run it") {
  const TemporaryFolder folder;
  const fs::path spare = folder / "spare";
  const VariableIs home("HOME", "/proc");
  const VariableIs spare_root("DTRAIN_SPARE_ROOT", spare.string());
  LocalTransport here;
  {
    const AgentSession session = AgentSession::open(here, Home::binary());
    CHECK(session.hello().agent ==
          (spare / "agents" / Home::binary()->sha256 / "dtrain-agent").string());
    CHECK(session.hello().host.base == spare.string());
  }
  CHECK_FALSE(AgentSession::open(here, Home::binary()).sent_binary());
  // What a link leads to may be another program when it is started.
  fs::rename(spare, folder / "elsewhere");
  fs::create_directory_symlink(folder / "elsewhere", spare);
  CHECK_THROWS_AS(AgentSession::open(here, Home::binary()), Error);
}
