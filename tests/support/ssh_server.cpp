#include "tests/support/ssh_server.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <stdexcept>

#include "launcher/core/capture.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::testing {
namespace {

void must_run(const std::vector<std::string>& argv) {
  SpawnOptions options;
  options.argv = argv;
  const Captured ran = capture(options, {}, std::chrono::seconds(20));
  if (!ran.exit.ok()) throw std::runtime_error(shell_join(argv) + ": " + ran.err);
}

std::pair<UniqueFd, int> listen_anywhere() {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(fd.get(), 64) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("cannot listen");
  }
  return {std::move(fd), ntohs(address.sin_port)};
}

std::vector<pid_t> children_of(pid_t pid) {
  const std::string task = std::to_string(pid);
  std::vector<pid_t> found;
  std::optional<std::string> text;
  try {
    text = read_file_if_there("/proc/" + task + "/task/" + task + "/children");
  } catch (const Error&) {  // it ended while it was read
  }
  for (const std::string& word : split(text.value_or(""), ' ')) {
    if (!word.empty()) found.push_back(std::stoi(word));
  }
  return found;
}

const char* kSshd = "/usr/sbin/sshd";

}  // namespace

bool have_sshd() {
  return fs::exists(kSshd) && fs::exists("/usr/bin/ssh-keygen");
}

void make_key(const fs::path& file, const std::string& passphrase) {
  must_run({"ssh-keygen", "-q", "-t", "ed25519", "-C", "test", "-N", passphrase, "-a", "1", "-f",
            file.native()});
}

SshServer::SshServer(const std::string& lines) : lines_(lines) {
  make_key(folder_ / "host_key");
  make_key(key());
  authorize(key().native() + ".pub");
  if (::geteuid() == 0) ::mkdir("/run/sshd", 0755);  // sshd wants it of root
  start();
}

SshServer::~SshServer() {
  stop();
}

void SshServer::stop() {
  if (pid_ <= 0) return;
  kill_sessions();
  ::kill(pid_, SIGKILL);
  wait(pid_);
  pid_ = 0;
  // What its sessions started is known by this folder in its environment.
  sweep("DTRAIN_TEST_SSHD", folder().native(), std::chrono::seconds(5));
}

void SshServer::kill_sessions() {
  for (const pid_t child : children_of(pid_)) {
    for (const pid_t grandchild : children_of(child)) ::kill(grandchild, SIGKILL);
    ::kill(child, SIGKILL);
  }
}

void SshServer::start() {
  for (int tries = 0; tries < 10; ++tries) {
    int port = port_;
    if (port == 0) port = listen_anywhere().second;  // closed again: sshd takes no socket of ours
    const std::string config =
        "Port " + std::to_string(port) + "\nListenAddress 127.0.0.1\nHostKey " +
        (folder_ / "host_key").native() + "\nAuthorizedKeysFile " +
        (folder_ / "authorized").native() +
        "\nPidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nLogLevel VERBOSE\nSetEnv DTRAIN_TEST_SSHD=" +
        folder().native() + "\n";
    // The first word counts in sshd's configuration, so a test's lines stand in front.
    write_file_atomic(folder_ / "sshd_config", lines_ + "\n" + config);
    SpawnOptions options;
    options.argv = {kSshd, "-D", "-e", "-f", (folder_ / "sshd_config").native()};
    options.env.push_back("DTRAIN_TEST_SSHD=" + folder().native());
    const UniqueFd log = open_file(folder_ / "sshd.log", O_WRONLY | O_CREAT | O_APPEND);
    options.stdout_fd = log.get();
    options.stderr_fd = log.get();
    options.death_signal = SIGKILL;
    pid_ = spawn(options);
    const std::string ready = "Server listening on 127.0.0.1 port " + std::to_string(port);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < until) {
      if (this->log().find(ready) != std::string::npos) {
        port_ = port;
        return;
      }
      if (try_wait(pid_)) {
        pid_ = 0;
        break;
      }
      ::poll(nullptr, 0, 3);
    }
    if (pid_ != 0) stop();
  }
  throw std::runtime_error("sshd does not start: " + log());
}

std::string SshServer::log() const {
  return read_file_if_there(folder_ / "sshd.log").value_or("");
}

std::string SshServer::user() const {
  static const std::string name = ::getpwuid(::geteuid())->pw_name;
  return name;
}

std::string SshServer::host_key_line() const {
  const auto words = split(read_file(folder_ / "host_key.pub"), ' ');
  return "[127.0.0.1]:" + std::to_string(port_) + " " + words[0] + " " + words[1] + "\n";
}

void SshServer::new_host_key() {
  stop();
  fs::remove(folder_ / "host_key");
  fs::remove(folder_ / "sshd.log");
  make_key(folder_ / "host_key");
  start();
}

void SshServer::authorize(const fs::path& public_key) {
  const std::string before = read_file_if_there(folder_ / "authorized").value_or("");
  write_file_atomic(folder_ / "authorized", before + read_file(public_key));
}

SshHost SshServer::host() const {
  SshHost host;
  host.host = "127.0.0.1";
  host.port = port_;
  host.user = user();
  return host;
}

SshOptions SshServer::options(bool known) {
  write_file_atomic(known_hosts(), known ? host_key_line() : "");
  write_file_atomic(folder_ / "ssh_config", "UserKnownHostsFile " + known_hosts().native() +
                                                "\nGlobalKnownHostsFile none\nIdentityFile " +
                                                key().native() + "\nIdentityAgent none\n");
  SshOptions options;
  options.config = folder_ / "ssh_config";
  options.known_hosts = pinned();
  options.deadline = std::chrono::seconds(20);
  return options;
}

FakeServer::FakeServer(std::function<void(int, int)> each) : each_(std::move(each)) {
  auto [fd, port] = listen_anywhere();
  listener_ = std::move(fd);
  port_ = port;
  thread_ = std::thread([this] {
    while (true) {
      const UniqueFd one(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!one) return;
      each_(one.get(), count_++);
    }
  });
}

FakeServer::~FakeServer() {
  ::shutdown(listener_.get(), SHUT_RDWR);
  thread_.join();
}

}  // namespace dtrain::testing
