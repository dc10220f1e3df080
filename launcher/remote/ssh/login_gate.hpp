#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <stop_token>
#include <string>

namespace dtrain {

// How many logins may be under way at once. sshd's default MaxStartups (10:30:100) drops some of
// more than ten simultaneous ones, so each server has a window that shrinks by half when it drops a
// login and grows by one for each windowful that passes; and all servers together have a bound,
// for this machine's sake. Thread-safe.
class LoginGate {
 public:
  struct Limits {
    double first = 8;   // a server's window to begin with
    double most = 64;   // and at its largest
    int together = 64;  // all servers
  };
  LoginGate() : LoginGate(Limits{}) {}
  explicit LoginGate(Limits limits) : limits_(limits) {}

  // A place in the gate; given back when destroyed.
  class Pass {
   public:
    Pass(Pass&& other) noexcept : gate_(other.gate_), server_(std::move(other.server_)) {
      other.gate_ = nullptr;
    }
    Pass& operator=(Pass&&) = delete;
    ~Pass();
    void passed();   // the server let us in or answered with a refusal: it keeps up
    void dropped();  // it closed the connection before it had spoken: too many at once
   private:
    friend class LoginGate;
    Pass(LoginGate* gate, std::string server) : gate_(gate), server_(std::move(server)) {}
    LoginGate* gate_;
    std::string server_;
  };

  // Waits for a place. Throws Error(timeout) at `until`, Error(failed) when `stop` is asked for.
  Pass enter(const std::string& server, std::chrono::steady_clock::time_point until,
             const std::stop_token& stop = {});

  void allow_together(int logins);  // of all servers, from now on
  double window(const std::string& server) const;

 private:
  struct Server {
    double window = 0;
    int inside = 0;
    std::chrono::steady_clock::time_point shrunk{};
  };
  Server& server(const std::string& name);

  Limits limits_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::string, Server> servers_;
  int inside_ = 0;
};

}  // namespace dtrain
