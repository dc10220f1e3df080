#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "launcher/remote/ssh/auth.hpp"
#include "launcher/remote/ssh/known_hosts.hpp"

namespace dtrain {
class SshConnection;
}

namespace dtrain::ssh {

// What carries a connection's bytes, where it is no socket of the session's own.
class Carrier {
 public:
  Carrier() = default;
  Carrier(Carrier&& other) noexcept { *this = std::move(other); }
  Carrier& operator=(Carrier&& other) noexcept;
  ~Carrier();  // ends the proxy command

  std::shared_ptr<SshConnection> via;  // a jump
  pid_t proxy = 0;                     // a proxy command, ours to reap
  UniqueFd proxy_errors;               // its stderr, non-blocking

  // The last of what the proxy command said, on one line.
  std::string proxy_said();

 private:
  std::string said_;
};

struct LoggedIn {
  Carrier carrier;
  Session session;  // ended before its carrier; non-blocking
};

// The whole way to an authenticated session: connect (or proxy command, or through `via`), host
// key, keys. Tries again, under the gate, what an overloaded sshd drops. Errors as
// SshConnection::connect.
LoggedIn log_in(const Settings& settings, const std::shared_ptr<SshConnection>& via,
                const SshOptions& options);

// The host's key against what is known; pins it where that is allowed. Throws Error(denied).
void check_host_key(const HostKey& key, const Settings& settings, const KnownKeys& users,
                    const KnownKeys& pinned, const SshOptions& options, Deadline& deadline);

}  // namespace dtrain::ssh
