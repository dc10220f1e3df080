// What one connection to a real sshd serves.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <future>
#include <numeric>

#include "launcher/core/capture.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/remote/ssh/transport.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/ssh_server.hpp"

using namespace dtrain;
using namespace dtrain::testing;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

std::string read_all(int fd) {
  std::string text;
  char buffer[65536];
  ssize_t got = 0;
  while ((got = ::recv(fd, buffer, sizeof buffer, 0)) > 0) {
    text.append(buffer, static_cast<std::size_t>(got));
  }
  return text;
}

std::string pattern(std::size_t size) {
  std::string text(size, '\0');
  unsigned state = 12345;
  for (char& c : text) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return text;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Echoes each connection on a unix socket until its input ends.
class Echo {
 public:
  explicit Echo(const fs::path& path) {
    fd_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.native().copy(address.sun_path, path.native().size());
    REQUIRE(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(fd_.get(), 64) == 0);
    thread_ = std::thread([this] {
      while (true) {
        const int one = ::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC);
        if (one < 0) return;
        std::thread([one] {
          const UniqueFd owned(one);
          char buffer[65536];
          ssize_t got = 0;
          while ((got = ::recv(one, buffer, sizeof buffer, 0)) > 0) {
            write_all(one, {buffer, static_cast<std::size_t>(got)});
          }
        }).detach();
      }
    });
  }
  ~Echo() {
    ::shutdown(fd_.get(), SHUT_RDWR);
    thread_.join();
  }

 private:
  UniqueFd fd_;
  std::thread thread_;
};

std::string echoed(int fd, const std::string& text) {
  std::thread writer([&] {
    write_all(fd, text);
    ::shutdown(fd, SHUT_WR);
  });
  std::string got = read_all(fd);
  writer.join();
  return got;
}

UniqueFd connect_unix(const fs::path& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.native().copy(address.sun_path, path.native().size());
  REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

}  // namespace

TEST_CASE("exec: output, stderr, exit codes and signals") {
  SshServer server;
  const auto connection = server.connect();
  const auto channel = connection->exec("cat; echo trouble >&2; exit 3");
  write_all(channel->fd(), "hello\n");
  CHECK_FALSE(channel->wait(milliseconds(0)));
  ::shutdown(channel->fd(), SHUT_WR);
  CHECK(read_all(channel->fd()) == "hello\n");
  CHECK(channel->wait(seconds(20)) == 3);
  CHECK(channel->errors() == "trouble\n");
  CHECK(connection->exec("kill -9 $$")->wait(seconds(20)) == 137);
  CHECK(connection->exec("exec /no/such/program")->wait(seconds(20)) == 127);
}

TEST_CASE("exec: large data both ways at once, and a reader that is slow") {
  SshServer server;
  const auto connection = server.connect();
  const std::string text = pattern(std::size_t{48} << 20);
  const auto channel = connection->exec("cat");
  CHECK(echoed(channel->fd(), text) == text);
  CHECK(channel->wait(seconds(20)) == 0);

  // Nobody reads the one: the other goes on, and the one is whole in the end.
  const auto stuck = connection->exec("head -c 33554432 /dev/zero");
  const auto other = connection->exec("cat");
  const std::string small = pattern(std::size_t{4} << 20);
  CHECK(echoed(other->fd(), small) == small);
  CHECK_FALSE(stuck->wait(milliseconds(0)));
  CHECK(read_all(stuck->fd()).size() == 33554432);
  CHECK(stuck->wait(seconds(20)) == 0);
}

TEST_CASE("exec: a server that rekeys in the middle") {
  SshServer server("RekeyLimit 4M");
  const auto connection = server.connect();
  const std::string text = pattern(std::size_t{32} << 20);
  const auto channel = connection->exec("cat");
  CHECK(echoed(channel->fd(), text) == text);
  CHECK(channel->wait(seconds(20)) == 0);
}

TEST_CASE("exec: more programs than MaxSessions wait for each other") {
  SshServer server;  // its default is 10
  const auto connection = server.connect();
  std::vector<std::future<int>> programs;
  for (int i = 0; i < 40; ++i) {
    programs.push_back(std::async(std::launch::async, [&, i] {
      const auto channel = connection->exec("cat >/dev/null; exit " + std::to_string(i));
      ::shutdown(channel->fd(), SHUT_WR);
      return channel->wait(seconds(30)).value_or(-1);
    }));
  }
  for (int i = 0; i < 40; ++i) CHECK(programs[static_cast<std::size_t>(i)].get() == i);
}

TEST_CASE("exec: MaxSessions counts a program that has ended for us alone") {
  // With a forced command sshd passes no signals on: what nobody wants any more goes on there.
  SshServer server("MaxSessions 1\nForceCommand /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"");
  const auto connection = server.connect();
  const fs::path fifo = server.folder() / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  {
    const auto channel = connection->exec("echo up; exec cat " + fifo.native());
    char up[3];
    REQUIRE(::recv(channel->fd(), up, sizeof up, MSG_WAITALL) == 3);
  }
  auto next = std::async(std::launch::async, [&] { return connection->exec("exit 7"); });
  CHECK(next.wait_for(seconds(3)) == std::future_status::timeout);
  write_all(open_file(fifo, O_WRONLY).get(), "end\n");
  CHECK(next.get()->wait(seconds(20)) == 7);
}

TEST_CASE("exec: a program that nobody wants any more is ended") {
  SshServer server;
  const auto connection = server.connect();
  const fs::path pid_file = server.folder() / "pid";
  {
    // sshd passes signals on for ordinary users only: of root's programs those end that read.
    const std::string last = ::geteuid() == 0 ? "exec cat" : "exec sleep 1000";
    const auto channel = connection->exec("echo $$ >" + pid_file.native() + "; echo up; " + last);
    char up[3];
    REQUIRE(::recv(channel->fd(), up, sizeof up, MSG_WAITALL) == 3);
  }
  const pid_t pid = std::stoi(read_file(pid_file));
  const auto until = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
  while (start_time(pid) && std::chrono::steady_clock::now() < until) ::poll(nullptr, 0, 20);
  CHECK_FALSE(start_time(pid));
}

TEST_CASE("forwards: a unix socket and a tcp port there, from here") {
  SshServer server;
  const auto connection = server.connect();
  const fs::path there = server.folder() / "echo.sock";
  const Echo echo(there);
  const fs::path here = server.folder() / "here.sock";
  connection->serve_unix(here, there.native());
  struct stat status {};
  REQUIRE(::stat(here.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  std::vector<std::future<bool>> clients;
  for (int i = 0; i < 30; ++i) {  // forwards are no sessions: MaxSessions does not count
    clients.push_back(std::async(std::launch::async, [&, i] {
      const UniqueFd fd = connect_unix(here);
      // The first is more than the sockets on its way hold.
      const std::string mine = pattern(i == 0 ? std::size_t{3} << 20
                                              : std::size_t{100000} + static_cast<std::size_t>(i));
      return echoed(fd.get(), mine) == mine;
    }));
  }
  for (auto& client : clients) CHECK(client.get());
  const fs::path to_nothing = server.folder() / "nothing.sock";
  connection->serve_unix(to_nothing, (server.folder() / "not-there.sock").native());
  char none = 0;
  CHECK(::recv(connect_unix(to_nothing).get(), &none, 1, 0) == 0);

  // Our own sshd is a tcp service as good as any.
  const UniqueFd banner = connection->open_tcp("127.0.0.1", server.port());
  char first[7];
  REQUIRE(::recv(banner.get(), first, sizeof first, MSG_WAITALL) == 7);
  CHECK(std::string(first, 7) == "SSH-2.0");

  CHECK_THROWS_AS(connection->open_tcp("127.0.0.1", 1), Error);
  connection->close();
  CHECK_FALSE(fs::exists(here));
}

TEST_CASE("forwards: where sockets may not be forwarded a program bridges them") {
  SshServer server("AllowStreamLocalForwarding no");
  const auto connection = server.connect();
  const fs::path here = server.folder() / "here.sock";
  connection->serve_unix(here, (server.folder() / "echo.sock").native(), "exec cat");
  const UniqueFd fd = connect_unix(here);
  const std::string text = pattern(200000);
  CHECK(echoed(fd.get(), text) == text);
}

TEST_CASE("a connection that breaks: every channel and wait ends, and says which host") {
  SshServer server;
  const auto connection = server.connect();
  const auto channel = connection->exec("sleep 1000");
  const fs::path here = server.folder() / "here.sock";
  connection->serve_unix(here, "/none");
  auto waiting = std::async(std::launch::async, [&]() -> std::string {
    try {
      channel->wait(seconds(30));
    } catch (const Error& error) {
      return std::string(to_string(error.code())) + " " + error.what();
    }
    return "it ended";
  });
  server.kill_sessions();
  const std::string said = waiting.get();
  CAPTURE(said);
  CHECK(has(said, to_string(ErrorCode::unreachable)));
  CHECK(has(said, "127.0.0.1:" + std::to_string(server.port())));
  CHECK(connection->wait_ended(seconds(10)));
  CHECK_FALSE(connection->alive());
  CHECK(read_all(channel->fd()).empty());
  CHECK_FALSE(fs::exists(here));
  CHECK_THROWS_AS(connection->exec("true"), Error);
}

TEST_CASE("a host that falls silent is given up within 15 s") {
  SshServer server;
  const auto connection = server.connect();
  const auto channel = connection->exec("echo $PPID; sleep 1000");
  char digits[16] = {};
  REQUIRE(::recv(channel->fd(), digits, sizeof digits - 1, 0) > 0);
  const pid_t sshd = std::stoi(digits);
  REQUIRE(::kill(sshd, SIGSTOP) == 0);
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS_AS(channel->wait(seconds(40)), Error);
  const auto took = std::chrono::steady_clock::now() - start;
  ::kill(sshd, SIGCONT);
  CHECK(took > seconds(5));
  CHECK(took < seconds(18));
}

TEST_CASE("a quiet connection to a host that answers stays") {
  SshServer server;
  const auto connection = server.connect();
  CHECK_FALSE(connection->wait_ended(seconds(17)));
  CHECK(connection->exec("exit 2")->wait(seconds(10)) == 2);
}

TEST_CASE("transport: run, put, open, detached; whatever the login shell says") {
  SshServer server;
  const auto shared = server.connect();
  SshTransport transport(shared);
  const std::vector<std::string> odd = {"a b",   "'",     "!x",        "back\\slash",
                                        "$HOME", "\"q\"", "new\nline", "\xC3\xBC",
                                        "%s",    "`id`",  "",          "~"};
  std::vector<std::string> argv = {"printf", "<%s>"};
  argv.insert(argv.end(), odd.begin(), odd.end());
  std::string expected;
  for (const std::string& word : odd) expected += "<" + word + ">";
  CHECK(transport.run(argv, {}, seconds(20)).out == expected);

  const Captured captured =
      transport.run({"/bin/sh", "-c", "cat; echo no >&2; exit 3"}, "hello", seconds(20));
  CHECK(captured.exit.code == 3);
  CHECK(captured.out == "hello");
  CHECK(captured.err == "no\n");
  CHECK_THROWS_AS(transport.run({"sleep", "1000"}, {}, milliseconds(200)), Error);

  const fs::path file = server.folder() / "a/b/file";
  const std::string content = pattern(3000000);
  transport.put("first", file, 0644);
  transport.put(content, file, 0700);
  CHECK(read_file(file) == content);
  struct stat status {};
  REQUIRE(::stat(file.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  CHECK(std::distance(fs::directory_iterator(file.parent_path()), fs::directory_iterator()) == 1);
  CHECK_THROWS_AS(transport.put("x", "/proc/none/file", 0600), Error);

  const fs::path pipe = server.folder() / "fifo";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  transport.start_detached({"/bin/sh", "-c", "echo started >" + pipe.native()});
  CHECK(read_file(pipe) == "started\n");
  CHECK_THROWS_AS(transport.start_detached({"/no/such/program"}), Error);
}

TEST_CASE("transport: the head's socket is met through a forward") {
  SshServer server;
  const auto shared = server.connect();
  SshTransport transport(shared);
  const fs::path root = server.folder() / "head";
  fs::create_directories(root);
  const fs::path there = paths::head_socket(root);  // the same machine, so the same function
  const Echo echo(there);
  const fs::path here = transport.head_socket({root, {}, {}});
  CHECK(here != there);
  CHECK(transport.head_socket({root, {}, {}}) == here);
  const UniqueFd fd = connect_unix(here);
  CHECK(echoed(fd.get(), "hello") == "hello");
  fs::remove_all(there.parent_path());
}
