#include "launcher/remote/ssh/login_gate.hpp"

#include <algorithm>

#include "launcher/core/error.hpp"

namespace dtrain {
namespace {

// Logins that were dropped together count as one sign.
constexpr std::chrono::milliseconds kOneSign{300};

}  // namespace

LoginGate::Pass::~Pass() {
  if (gate_ == nullptr) return;
  const std::lock_guard guard(gate_->mutex_);
  --gate_->server(server_).inside;
  --gate_->inside_;
  gate_->changed_.notify_all();
}

void LoginGate::Pass::passed() {
  const std::lock_guard guard(gate_->mutex_);
  Server& server = gate_->server(server_);
  server.window = std::min(gate_->limits_.most, server.window + 1 / server.window);
}

void LoginGate::Pass::dropped() {
  const std::lock_guard guard(gate_->mutex_);
  Server& server = gate_->server(server_);
  const auto now = std::chrono::steady_clock::now();
  if (now - server.shrunk < kOneSign) return;
  server.shrunk = now;
  server.window = std::max(1.0, server.window / 2);
}

LoginGate::Server& LoginGate::server(const std::string& name) {
  Server& server = servers_[name];
  if (server.window == 0) server.window = limits_.first;
  return server;
}

LoginGate::Pass LoginGate::enter(const std::string& name,
                                 std::chrono::steady_clock::time_point until,
                                 const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto place = [&] {
    const Server& one = server(name);
    return one.inside + 1 <= one.window && inside_ < limits_.together;
  };
  if (!changed_.wait_until(lock, stop, until, place)) {
    if (stop.stop_requested()) throw Error(ErrorCode::failed, "the login was given up");
    throw Error(ErrorCode::timeout, "other logins to " + name + " took all of the time");
  }
  ++server(name).inside;
  ++inside_;
  return Pass(this, name);
}

void LoginGate::allow_together(int logins) {
  const std::lock_guard lock(mutex_);
  limits_.together = logins;
  changed_.notify_all();
}

double LoginGate::window(const std::string& name) const {
  const std::lock_guard guard(mutex_);
  const auto found = servers_.find(name);
  return found == servers_.end() ? limits_.first : found->second.window;
}

}  // namespace dtrain
