#pragma once

#include <memory>
#include <string>

#include "launcher/remote/piped_child.hpp"
#include "launcher/remote/ssh/auth.hpp"
#include "launcher/remote/ssh/known_hosts.hpp"

namespace dtrain {
class SshConnection;
}

namespace dtrain::ssh {

// What carries a connection's bytes, where it is no socket of the session's own.
struct Carrier {
  std::shared_ptr<SshConnection> via;  // a jump
  std::unique_ptr<PipedChild> proxy;   // a proxy command

  // The last of what the proxy command said, on one line.
  std::string proxy_said() const;
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
