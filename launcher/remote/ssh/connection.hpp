#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "launcher/core/unique_fd.hpp"
#include "launcher/remote/ssh/options.hpp"
#include "launcher/remote/ssh/settings.hpp"
#include "launcher/remote/transport.hpp"

namespace dtrain {

namespace ssh {
class Loop;
}

struct SshExec {
  // A line that the command prints before its own output: all of stdout up to and with it is
  // dropped (a login shell's chatter), and given to errors() if it never comes.
  std::string marker;
  std::size_t errors_kept = std::size_t{16} << 10;  // of its stderr, the last bytes
};

// One SSH connection to one host, which serves everything: programs, sockets, forwards. After
// connect() a thread of its own owns it; all methods are safe from any thread, and block only for
// the answer of the host (at most 30 s, then Error(timeout)).
//
// When the connection breaks (half-open ones are noticed within 15 s), every channel and forward
// ends, Channel::wait and new calls throw Error(unreachable) with the host's name.
class SshConnection : public std::enable_shared_from_this<SshConnection> {
 public:
  // Reaches and logs in, on the caller's thread. Errors, all naming the host:
  //   unreachable  no such name, refused, no route, dropped again and again
  //   timeout      options.deadline, or the server accepted and was silent
  //   denied       the host key is unknown, changed or revoked; or the login was refused
  //   invalid      names that may not be used, a key file that cannot be read
  //   failed       options.stop
  static std::shared_ptr<SshConnection> connect(const SshHost& host, const SshOptions& options);
  // The same through a host that is already connected, in place of jumps and proxy command; its
  // key may be known under another name, options.key_name.
  static std::shared_ptr<SshConnection> connect_through(std::shared_ptr<SshConnection> jump,
                                                        const SshHost& host,
                                                        const SshOptions& options);
  // Ends all channels and forwards; what was written to them before is sent, for at most 200 ms.
  ~SshConnection();
  SshConnection(const SshConnection&) = delete;
  SshConnection& operator=(const SshConnection&) = delete;

  // Starts a command line, read by the user's login shell there. Waits while the server allows no
  // further session (MaxSessions), for at most 30 s. The channel may outlive this object, broken.
  std::unique_ptr<Channel> exec(const std::string& command, const SshExec& options = {});

  // A socket to a port there: Error(unreachable) when nothing listens or the server forbids it,
  // Error(timeout) after `limit`, if that is less than for all.
  UniqueFd open_tcp(const std::string& host, int port,
                    std::chrono::milliseconds limit = std::chrono::milliseconds::max());

  // Listens on a socket here (0600; its folder must be private) and takes each connection to
  // `remote_path` there; when the server refuses that (AllowStreamLocalForwarding no), to the stdio
  // of `bridge`, a command line, if there is one. Until the connection ends; then the socket goes.
  void serve_unix(const fs::path& local_path, const std::string& remote_path,
                  const std::string& bridge = {});

  // Ends it now, as the destructor does.
  void close();
  bool alive() const;
  // Blocks until the connection has ended, at most `limit`; true when it has.
  bool wait_ended(std::chrono::milliseconds limit) const;

  const ssh::Settings& settings() const { return settings_; }
  // "user@host", or "user@host (address:port)": for messages.
  std::string name() const;

 private:
  explicit SshConnection(ssh::Settings settings) : settings_(std::move(settings)) {}
  static std::shared_ptr<SshConnection> make(ssh::Settings settings,
                                             std::shared_ptr<SshConnection> via,
                                             const SshOptions& options);

  ssh::Settings settings_;
  std::shared_ptr<SshConnection> via_;  // the jump that carries it
  std::shared_ptr<SshShared> shared_;
  std::shared_ptr<ssh::Loop> loop_;
};

}  // namespace dtrain
