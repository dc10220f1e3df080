#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/remote/ssh/login_gate.hpp"
#include "launcher/remote/ssh/prompter.hpp"
#include "launcher/remote/transport.hpp"

namespace dtrain {

class SshConnection;
namespace ssh {
class Keyring;
}

// What all hosts of one command share: the gate, the keys that were unlocked, the connections to
// jump hosts, and the one voice that asks the person. Thread-safe; kept by every connection.
class SshShared {
 public:
  // Without a prompter nobody is asked, and what would have to be asked fails.
  explicit SshShared(std::shared_ptr<Prompter> prompter = nullptr, LoginGate::Limits limits = {});
  ~SshShared();

  LoginGate& gate() { return gate_; }
  ssh::Keyring& keys() { return *keys_; }
  // One at a time over all threads. `waited` gets the time that it took, waiting included, so that
  // a deadline can leave it out.
  std::optional<std::string> ask(const std::string& prompt, bool echo, const std::stop_token& stop,
                                 std::chrono::milliseconds& waited);
  bool confirm(const std::string& text, const std::stop_token& stop,
               std::chrono::milliseconds& waited);
  bool anybody() const { return prompter_ != nullptr; }

  // The connection to a jump host named `key`, which all that go through it share; `make` makes it
  // when it is not there or broken, once for all threads that wait for it. A failure of `make` is
  // told to each of them.
  std::shared_ptr<SshConnection> jump(const std::string& key,
                                      const std::function<std::shared_ptr<SshConnection>()>& make);

 private:
  LoginGate gate_;
  std::unique_ptr<ssh::Keyring> keys_;
  std::shared_ptr<Prompter> prompter_;
  std::mutex asking_;
  struct Jump {
    std::mutex making;
    std::weak_ptr<SshConnection> connection;
    std::optional<Error> failure;
    std::chrono::steady_clock::time_point failed;
  };
  std::mutex jumps_mutex_;
  std::map<std::string, std::shared_ptr<Jump>> jumps_;
};

struct SshOptions {
  fs::path known_hosts;     // the cluster's own pinned keys; empty: nothing is pinned
  bool accept_new = false;  // pins an unknown key without asking
  // For all of the login, with its retries; the time that a person takes is not counted.
  std::chrono::milliseconds deadline{60000};
  // For how long a port that refuses is tried again: sshd starts anew, say.
  std::chrono::milliseconds refused_for{2000};
  // Tries again until the deadline whatever keeps it from being reached.
  bool is_patient = false;
  std::shared_ptr<SshShared> shared = std::make_shared<SshShared>();
  fs::path config;       // in place of ~/.ssh/config; empty: the user's and the system's
  std::string key_name;  // under which the host's key is known; empty: its own name
  std::stop_token stop;  // ends a login within 100 ms, with Error(failed)
  std::function<void(const std::string&)> warn;  // called on the connecting thread; may be empty
  // How it stands, at the beginning and after each try that is not the last; likewise.
  std::function<void(const ReachTry&)> on_try;
};

}  // namespace dtrain
