#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/remote/ssh/connection.hpp"
#include "tests/support/temporary_folder.hpp"

namespace dtrain::testing {

// Whether this machine has sshd and ssh-keygen.
bool have_sshd();

// A real sshd of this user on 127.0.0.1, with a host key and a client key of its own. Ends with the
// object, and every process that it started too.
class SshServer {
 public:
  // `lines` are added to its configuration.
  explicit SshServer(const std::string& lines = {});
  ~SshServer();
  SshServer(const SshServer&) = delete;
  SshServer& operator=(const SshServer&) = delete;

  int port() const { return port_; }
  SshHost host() const;
  // Nothing of the user's: a configuration, a known_hosts file and a key in this folder. The host
  // key is known unless `known` is false. A deadline of 20 s.
  SshOptions options(bool known = true);
  std::shared_ptr<SshConnection> connect() { return SshConnection::connect(host(), options()); }

  const fs::path& folder() const { return folder_.path(); }
  fs::path key() const { return folder_ / "key"; }
  fs::path known_hosts() const { return folder_ / "known_hosts"; }
  fs::path pinned() const { return folder_ / "pinned"; }
  std::string host_key_line() const;  // for a known_hosts file
  std::string log() const;            // what sshd said
  pid_t pid() const { return pid_; }
  void kill_sessions();  // the sshd of each connection, at once
  void new_host_key();   // and starts anew, on the same port
  void authorize(const fs::path& public_key);
  std::string user() const;

 private:
  void start();
  void stop();

  TemporaryFolder folder_;
  std::string lines_;
  int port_ = 0;
  pid_t pid_ = 0;
};

// ssh-keygen -t ed25519.
void make_key(const fs::path& file, const std::string& passphrase = {});

// A TCP server on 127.0.0.1 whose connections are dealt with by `each`, one after the other on a
// thread. `count` says how many there were.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int fd, int number)> each);
  ~FakeServer();
  int port() const { return port_; }
  int count() const { return count_; }

 private:
  UniqueFd listener_;
  int port_ = 0;
  std::atomic<int> count_{0};
  std::function<void(int, int)> each_;
  std::thread thread_;
};

}  // namespace dtrain::testing
