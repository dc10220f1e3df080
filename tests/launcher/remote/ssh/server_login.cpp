// Logins at a real sshd.

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <future>
#include <mutex>

#include "launcher/core/capture.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/ssh/known_hosts.hpp"
#include "tests/support/ssh_server.hpp"

using namespace dtrain;
using namespace dtrain::testing;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

namespace {

// Before any test: without sshd this program is skipped, which meson counts by 77.
[[maybe_unused]] const bool kChecked = [] {
  if (!have_sshd()) {
    std::puts("skipped: sshd (Debian: openssh-server) is not installed");
    std::fflush(stdout);
    ::_exit(77);
  }
  return true;
}();

class Answers final : public Prompter {
 public:
  std::string secret;
  bool yes = false;
  std::vector<std::string> asked;

  std::optional<std::string> ask(const std::string& prompt, bool, const std::stop_token&) override {
    asked.push_back(prompt);
    if (secret.empty()) return std::nullopt;
    return secret;
  }
  bool confirm(const std::string& text, const std::stop_token&) override {
    asked.push_back(text);
    return yes;
  }
};

Error failure(const SshHost& host, const SshOptions& options) {
  try {
    SshConnection::connect(host, options);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::internal, "it connected");
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

int code_of(SshConnection& connection, const std::string& command) {
  const auto code = connection.exec(command)->wait(seconds(20));
  return code.value_or(-1);
}

}  // namespace

TEST_CASE("login: with a key, to a host whose key is known") {
  SshServer server;
  const auto connection = server.connect();
  CHECK(connection->alive());
  CHECK(code_of(*connection, "exit 7") == 7);
  connection->close();
  CHECK_FALSE(connection->alive());
  CHECK_THROWS_AS(connection->exec("true"), Error);
}

TEST_CASE("login: a wrong key is refused, and what was tried is said") {
  SshServer server;
  SshOptions options = server.options();
  SshHost host = server.host();
  host.identity = server.folder() / "other";
  make_key(host.identity);
  // The configured one is right, so that the given one alone would have to fail.
  CHECK(SshConnection::connect(host, options)->alive());
  write_file_atomic(options.config, "UserKnownHostsFile " + server.known_hosts().native() +
                                        "\nIdentityFile none\nIdentityAgent none\n");
  const Error error = failure(host, options);
  CHECK(error.code() == ErrorCode::denied);
  CHECK(says(error.message(), "other"));
  CHECK(says(error.message(), "the server accepts publickey"));
  host.identity.clear();
  CHECK(says(failure(host, options).message(), "there is no key to try"));
  host.identity = server.folder() / "missing";
  CHECK(failure(host, options).code() == ErrorCode::invalid);
}

TEST_CASE("host key: unknown, refused without somebody to ask; accepted, it is pinned") {
  SshServer server;
  SshOptions options = server.options(false);
  const Error error = failure(server.host(), options);
  CHECK(error.code() == ErrorCode::denied);
  CHECK(says(error.message(), "is not known"));
  CHECK(says(error.message(), "SHA256:"));
  CHECK_FALSE(fs::exists(server.pinned()));

  const auto answers = std::make_shared<Answers>();
  options.shared = std::make_shared<SshShared>(answers);
  CHECK(failure(server.host(), options).code() == ErrorCode::denied);
  REQUIRE(answers->asked.size() == 1);
  CHECK(says(answers->asked[0], "SHA256:"));
  answers->yes = true;
  CHECK(SshConnection::connect(server.host(), options)->alive());
  CHECK(read_file(server.pinned()) == server.host_key_line());
  // Known from now on: nobody is asked.
  CHECK(SshConnection::connect(server.host(), options)->alive());
  CHECK(answers->asked.size() == 2);

  fs::remove(server.pinned());
  options.shared = std::make_shared<SshShared>();
  options.accept_new = true;
  CHECK(SshConnection::connect(server.host(), options)->alive());
  CHECK(read_file(server.pinned()) == server.host_key_line());
}

TEST_CASE("host key: a changed one is refused with both fingerprints, whoever accepts") {
  SshServer server;
  SshOptions options = server.options(false);
  options.accept_new = true;
  CHECK(SshConnection::connect(server.host(), options)->alive());
  const auto fingerprint_of = [](const std::string& line) {
    const auto words = split(line.substr(0, line.size() - 1), ' ');
    return ssh::fingerprint({words[1], words[2]});
  };
  const std::string before = fingerprint_of(server.host_key_line());
  server.new_host_key();
  const std::string after = fingerprint_of(server.host_key_line());
  for (const bool users : {false, true}) {
    if (users) fs::rename(server.pinned(), server.known_hosts());
    const Error error = failure(server.host(), options);
    CAPTURE(error.message());
    CHECK(error.code() == ErrorCode::denied);
    CHECK(says(error.message(), "has changed"));
    CHECK(says(error.message(), before));
    CHECK(says(error.message(), after));
    CHECK(says(error.message(), (users ? server.known_hosts() : server.pinned()).native() + ":1"));
  }
  CHECK_FALSE(says(server.log(), "Accepted"));
  CHECK_FALSE(says(server.log(), "Failed"));  // not even a key was offered
}

TEST_CASE("passphrase: asked once for all hosts, only where somebody is") {
  SshServer server;
  SshServer second;
  SshOptions options = server.options();
  const fs::path locked = server.folder() / "locked";
  make_key(locked, "open sesame");
  server.authorize(locked.native() + ".pub");
  second.authorize(locked.native() + ".pub");
  write_file_atomic(server.known_hosts(), server.host_key_line() + second.host_key_line());
  write_file_atomic(options.config, "UserKnownHostsFile " + server.known_hosts().native() +
                                        "\nIdentityFile " + locked.native() +
                                        "\nIdentityAgent none\n");
  const Error error = failure(server.host(), options);
  CHECK(error.code() == ErrorCode::denied);
  CHECK(says(error.message(), "has a passphrase"));

  const auto answers = std::make_shared<Answers>();
  answers->secret = "open sesame";
  options.shared = std::make_shared<SshShared>(answers);
  std::vector<std::future<bool>> logins;
  for (int i = 0; i < 6; ++i) {
    logins.push_back(std::async(std::launch::async, [&, i] {
      return SshConnection::connect((i % 2 == 0 ? server : second).host(), options)->alive();
    }));
  }
  for (auto& login : logins) CHECK(login.get());
  REQUIRE(answers->asked.size() == 1);
  CHECK(says(answers->asked[0], locked.native()));

  answers->secret = "wrong";
  options.shared = std::make_shared<SshShared>(answers);
  CHECK(says(failure(server.host(), options).message(), "no right passphrase"));
  CHECK(answers->asked.size() == 4);  // three times, and no more
  CHECK(says(failure(server.host(), options).message(), "no right passphrase"));
  CHECK(answers->asked.size() == 4);
}

TEST_CASE("agent: only the chosen keys are shown, however many it holds") {
  SshServer server;
  SshOptions options = server.options();
  const fs::path socket = server.folder() / "agent.sock";
  SpawnOptions agent;
  agent.argv = {"ssh-agent", "-D", "-a", socket.native()};
  agent.death_signal = SIGKILL;
  const pid_t pid = spawn(agent);
  const auto add = [&](const fs::path& key) {
    SpawnOptions adding;
    adding.argv = {"ssh-add", "-q", key.native()};
    adding.env.push_back("SSH_AUTH_SOCK=" + socket.native());
    for (int i = 0; i < 200; ++i) {  // until the agent listens
      if (capture(adding, {}, seconds(10)).exit.ok()) return true;
      ::usleep(5000);
    }
    return false;
  };
  for (int i = 0; i < 8; ++i) {
    const fs::path key = server.folder() / ("held" + std::to_string(i));
    make_key(key);
    REQUIRE(add(key));
  }
  REQUIRE(add(server.key()));
  // Eight wrong keys would end the login before the right one: the configured one goes first, and
  // its private file is not even needed.
  fs::rename(server.key(), server.folder() / "away");
  fs::copy_file(server.key().native() + ".pub", server.folder() / "key.only.pub");
  write_file_atomic(options.config, "UserKnownHostsFile " + server.known_hosts().native() +
                                        "\nIdentityAgent " + socket.native() + "\nIdentityFile " +
                                        (server.folder() / "key.only").native() + "\n");
  CHECK(SshConnection::connect(server.host(), options)->alive());
  write_file_atomic(options.config, "UserKnownHostsFile " + server.known_hosts().native() +
                                        "\nIdentityAgent " + socket.native() +
                                        "\nIdentitiesOnly yes\nIdentityFile " +
                                        (server.folder() / "held0").native() + "\n");
  CHECK(failure(server.host(), options).code() == ErrorCode::denied);
  ::kill(pid, SIGKILL);
  wait(pid);
}

TEST_CASE("names that could be options or shell words reach nothing") {
  SshServer server;
  for (const char* name : {"-oProxyCommand=touch x", "a b", "a;b", "$(id)", "a\nb", "", "a'b"}) {
    SshHost host;
    host.host = name;
    CHECK(failure(host, server.options()).code() == ErrorCode::invalid);
    host = server.host();
    host.user = name;
    if (host.user.empty()) continue;
    CHECK(failure(host, server.options()).code() == ErrorCode::invalid);
  }
}

TEST_CASE("jumps: two hops, each checked, one login at the jump for many behind it") {
  SshServer jump;
  SshServer behind;
  SshOptions options = jump.options();
  write_file_atomic(jump.known_hosts(), jump.host_key_line() + behind.host_key_line());
  behind.authorize(jump.key().native() + ".pub");
  SshHost host = behind.host();
  host.jumps = {jump.host()};
  std::vector<std::future<int>> logins;
  for (int i = 0; i < 4; ++i) {
    logins.push_back(std::async(std::launch::async, [&] {
      return code_of(*SshConnection::connect(host, options), "exit 3");
    }));
  }
  for (auto& login : logins) CHECK(login.get() == 3);

  // By way of a host that is connected already.
  const auto head = jump.connect();
  write_file_atomic(jump.known_hosts(), behind.host_key_line());
  CHECK(code_of(*SshConnection::connect_through(head, behind.host(), options), "exit 4") == 4);

  // The key of each hop counts.
  write_file_atomic(jump.known_hosts(), jump.host_key_line());
  options.shared = std::make_shared<SshShared>();
  CHECK(says(failure(host, options).message(), std::to_string(behind.port()) + " is not known"));
  write_file_atomic(jump.known_hosts(), behind.host_key_line());
  options.shared = std::make_shared<SshShared>();
  const Error error = failure(host, options);
  CHECK(says(error.message(), std::to_string(jump.port()) + " is not known"));
  CHECK(says(error.what(), "reaching the jump host"));
}

TEST_CASE("proxy command: its stdio carries the connection, its words are in the error") {
  SshServer server;
  SshOptions options = server.options();
  SshHost host = server.host();
  host.proxy_command = "ssh -F " + options.config.native() + " -i " + server.key().native() +
                       " -p %p -l %r -W localhost:%p %h";
  CHECK(code_of(*SshConnection::connect(host, options), "exit 5") == 5);
  host.proxy_command = "echo the gate is shut >&2; exit 1";
  const Error error = failure(host, options);
  CHECK(error.code() == ErrorCode::unreachable);
  CHECK(says(error.message(), "the gate is shut"));
}

TEST_CASE("a server that is silent, one that closes, one that says too little, one that is not") {
  SshServer server;
  SshOptions options = server.options();
  options.deadline = milliseconds(700);
  options.refused_for = milliseconds(100);
  SshHost host = server.host();
  {
    std::promise<void> over;
    auto until = over.get_future().share();
    FakeServer silent([until](int, int) { until.wait(); });
    host.port = silent.port();
    const auto start = steady_clock::now();
    const Error error = failure(host, options);
    over.set_value();
    CHECK(error.code() == ErrorCode::timeout);
    CHECK(says(error.message(), "then said nothing"));
    CHECK(says(error.what(), "127.0.0.1"));
    CHECK(steady_clock::now() - start < seconds(5));
  }
  {
    FakeServer banner([](int fd, int) {
      const std::string words = "SSH-2.0-OpenSSH_9.2\r\n";
      write_all(fd, words);
      char byte = 0;
      while (::recv(fd, &byte, 1, 0) > 0 && byte != '\n') {
      }
    });
    host.port = banner.port();
    const Error error = failure(host, options);
    CHECK(error.code() == ErrorCode::unreachable);
    CHECK(says(error.message(), "dropped"));
    CHECK(banner.count() > 1);  // it was tried again
  }
  {
    FakeServer closing([](int, int) {});
    host.port = closing.port();
    CHECK(failure(host, options).code() == ErrorCode::unreachable);
  }
  {
    FakeServer web([](int fd, int) {
      write_all(fd, "HTTP/1.1 400 Bad Request\r\n\r\n");
      char byte = 0;
      while (::recv(fd, &byte, 1, 0) > 0) {
      }
    });
    host.port = web.port();
    const Error error = failure(host, options);
    CHECK((error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout));
  }
  {
    int port = 0;
    {
      FakeServer gone([](int, int) {});
      port = gone.port();
    }
    host.port = port;
    const Error error = failure(host, options);
    CHECK(error.code() == ErrorCode::unreachable);
    CHECK(says(error.message(), "refused"));
  }
}

TEST_CASE("stop: a login that waits is given up at once") {
  SshServer server;
  SshOptions options = server.options();
  std::stop_source source;
  options.stop = source.get_token();
  std::promise<void> reached;
  std::promise<void> over;
  auto until = over.get_future().share();
  FakeServer silent([&, until](int, int) {
    reached.set_value();
    until.wait();
  });
  SshHost host = server.host();
  host.port = silent.port();
  auto login = std::async(std::launch::async, [&] { return failure(host, options); });
  reached.get_future().wait();
  source.request_stop();
  CHECK(login.get().code() == ErrorCode::failed);
  over.set_value();
}

TEST_CASE("MaxStartups at its default: 32 logins side by side all come through") {
  SshServer server;
  const SshOptions options = server.options();
  std::vector<std::future<int>> logins;
  const auto start = steady_clock::now();
  for (int i = 0; i < 32; ++i) {
    logins.push_back(std::async(std::launch::async, [&] {
      return code_of(*SshConnection::connect(server.host(), options), "exit 6");
    }));
  }
  for (auto& login : logins) CHECK(login.get() == 6);
  const auto took = std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
  MESSAGE("32 logins took " << took.count() << " ms");
}

TEST_CASE("MaxStartups far below what comes: retries and a smaller window bring all in") {
  SshServer server("MaxStartups 2");
  const SshOptions options = server.options();
  std::vector<std::future<int>> logins;
  for (int i = 0; i < 12; ++i) {
    logins.push_back(std::async(std::launch::async, [&] {
      return code_of(*SshConnection::connect(server.host(), options), "exit 6");
    }));
  }
  for (auto& login : logins) CHECK(login.get() == 6);
}
