#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "launcher/core/text.hpp"
#include "launcher/remote/ssh/loop.hpp"

namespace dtrain::ssh {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kInput = std::size_t{256} << 10;
constexpr std::size_t kWindow = std::size_t{4} << 20;
constexpr std::size_t kNoiseLimit = std::size_t{1} << 20;
constexpr std::chrono::seconds kSessionWait{30};
constexpr std::chrono::milliseconds kSessionPause{100};
// What the far program has, after its last input, when nobody here wants it any more.
constexpr std::chrono::seconds kGrace{1};
constexpr std::chrono::seconds kUnreadGrace{10};  // and when it does not even read that

int signal_number(const char* name) {
  for (int number = 1; name != nullptr && number < NSIG; ++number) {
    const char* known = ::sigabbrev_np(number);
    if (known != nullptr && std::strcmp(known, name) == 0) return number;
  }
  return SIGKILL;
}

}  // namespace

Link::Link(Loop& loop, Target target, UniqueFd local)
    : loop_(loop), target_(std::move(target)), local_(std::move(local)) {
  if (!target_.marker.empty()) marker_.emplace(target_.marker);
  since_ = steady_clock::now();
  callbacks_.userdata = this;
  callbacks_.channel_data_function = [](ssh_session, ssh_channel, void* data, uint32_t size,
                                        int is_error, void* self) {
    return static_cast<int>(
        static_cast<Link*>(self)->take({static_cast<const char*>(data), size}, is_error != 0));
  };
  callbacks_.channel_eof_function = [](ssh_session, ssh_channel, void* self) {
    static_cast<Link*>(self)->remote_ended_ = true;
  };
  callbacks_.channel_close_function = [](ssh_session, ssh_channel, void* self) {
    static_cast<Link*>(self)->remote_ended_ = true;
    static_cast<Link*>(self)->remote_closed_ = true;
  };
  callbacks_.channel_exit_status_function = [](ssh_session, ssh_channel, int code, void* self) {
    static_cast<Link*>(self)->code_ = code;
  };
  callbacks_.channel_exit_signal_function = [](ssh_session, ssh_channel, const char* signal, int,
                                               const char*, const char*, void* self) {
    static_cast<Link*>(self)->code_ = 128 + signal_number(signal);
  };
  ssh_callbacks_init(&callbacks_);
}

Link::~Link() = default;

void Link::open() {
  const bool is_session = target_.kind == Target::Kind::exec;
  if (state_ == State::waiting) {
    if (target_.kind == Target::Kind::unix_socket && !target_.bridge.empty() &&
        loop_.sockets_prohibited_) {
      take_bridge();
      return;
    }
    if (is_session && !loop_.session_free()) {
      if (steady_clock::now() - since_ > kSessionWait) {
        finish(Error(ErrorCode::exhausted,
                     loop_.name_ + ": it starts no further program, and none of those that run " +
                         "there has ended (MaxSessions of its sshd)"));
      }
      return;
    }
    channel_ = ssh_channel_new(loop_.session_.get());
    if (channel_ == nullptr) return finish(Error(ErrorCode::internal, "there is no channel"));
    ssh_add_channel_callbacks(channel_, &callbacks_);
    if (is_session) {
      ++loop_.sessions_;
      counted_ = true;
    }
    state_ = State::opening;
  }
  int rc = SSH_ERROR;
  switch (target_.kind) {
    case Target::Kind::exec:
      rc = ssh_channel_open_session(channel_);
      break;
    case Target::Kind::unix_socket:
      rc = ssh_channel_open_forward_unix(channel_, target_.text.c_str(), "localhost", 0);
      break;
    case Target::Kind::tcp:
      rc = ssh_channel_open_forward(channel_, target_.text.c_str(), target_.port, "127.0.0.1", 0);
      break;
  }
  if (rc == SSH_AGAIN) return;
  if (rc == SSH_OK) return opened();
  open_failed(ssh_get_error(loop_.session_.get()));
}

void Link::opened() {
  state_ = State::running;
  if (target_.kind == Target::Kind::exec) {
    requesting_ = true;
    loop_.had_sessions_ = true;
  }
  {
    const std::lock_guard guard(loop_.mutex_);
    shared.opened = true;
  }
  loop_.changed();
}

void Link::open_failed(const std::string& why) {
  ssh_remove_channel_callbacks(channel_, &callbacks_);
  ssh_channel_free(channel_);
  channel_ = nullptr;
  if (counted_) {
    --loop_.sessions_;
    counted_ = false;
  }
  if (!ssh_is_connected(loop_.session_.get())) return;  // the loop breaks it with the rest
  if (target_.kind == Target::Kind::exec && (loop_.sessions_ > 0 || loop_.had_sessions_)) {
    // So many it allows: wait for one of them to end. It may count some that have ended here, and
    // those alone.
    loop_.most_sessions_ = loop_.sessions_;
    loop_.most_until_ = steady_clock::now() + kSessionPause;
    state_ = State::waiting;
    return;
  }
  if (target_.kind == Target::Kind::unix_socket && !target_.bridge.empty()) {
    // Reason 1 of RFC 4254, 5.1: administratively prohibited, as it will be the next time.
    if (why.find("error (1)") != std::string::npos) loop_.sockets_prohibited_ = true;
    take_bridge();
    return;
  }
  std::string what;
  switch (target_.kind) {
    case Target::Kind::exec:
      what = "it starts no program";
      break;
    case Target::Kind::unix_socket:
      what = "it does not connect to its socket " + target_.text;
      break;
    case Target::Kind::tcp:
      what = "it does not connect to " + target_.text + " port " + std::to_string(target_.port);
      break;
  }
  finish(Error(ErrorCode::unreachable, loop_.name_ + ": " + what + ": " + printable(why, false)));
}

void Link::take_bridge() {
  target_.kind = Target::Kind::exec;
  target_.text = std::exchange(target_.bridge, {});
  state_ = State::waiting;
}

bool Link::may_open() const {
  return state_ == State::waiting && (target_.kind != Target::Kind::exec || loop_.session_free());
}

bool Link::wants_input() const {
  return state_ == State::running && !local_ended_ && input_.empty() && !remote_closed_ &&
         loop_.can_write() && ssh_channel_window_size(channel_) > 0;
}

void Link::from_local() {
  if (state_ != State::running || remote_closed_) return;
  if (!local_ended_ && input_.empty()) {
    input_.resize(kInput);
    const ssize_t got = ::recv(local_.get(), input_.data(), input_.size(), MSG_DONTWAIT);
    input_.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    input_at_ = 0;
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) local_ended_ = true;
  }
}

void Link::to_local() {
  while (state_ == State::running) {
    if (!spill_.empty()) {
      spill_at_ += give(std::string_view(spill_).substr(spill_at_));
      if (spill_at_ < spill_.size()) return;
      spill_.clear();
      spill_at_ = 0;
    }
    if (!held_) return;
    // All that libssh holds, in one piece: it opens its window again by what is read, not by what
    // it still holds.
    loop_.scratch_.resize(kWindow + (std::size_t{2} << 20));
    const int got = ssh_channel_read_timeout(channel_, loop_.scratch_.data(),
                                             static_cast<uint32_t>(loop_.scratch_.size()), 0, 0);
    if (got <= 0) {
      held_ = false;
      return;
    }
    window_ = loop_.scratch_.size();
    since_growth_ = 0;
    spill_.assign(loop_.scratch_.data(), static_cast<std::size_t>(got));
    held_ = static_cast<std::size_t>(got) == loop_.scratch_.size();
  }
}

std::size_t Link::give(std::string_view bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    if (local_gone_) return bytes.size();
    const ssize_t sent =
        ::send(local_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      done += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      local_gone_ = true;
    }
  }
  return done;
}

// Called by libssh for what has come: how much of it was taken. What is left it holds, and calls
// again with it in front.
std::size_t Link::take(std::string_view bytes, bool is_error) {
  if (is_error) {
    const std::lock_guard guard(loop_.mutex_);
    shared.errors += bytes;
    if (shared.errors.size() > 2 * target_.errors_kept) {
      shared.errors.erase(0, shared.errors.size() - target_.errors_kept);
    }
    return bytes.size();
  }
  if (!spill_.empty()) {
    held_ = true;
    return 0;
  }
  std::size_t noise = 0;
  if (marker_ && !marker_->found()) {
    noise = marker_->feed(bytes);
    noise_ += noise;
    since_growth_ += noise;
  }
  const std::size_t given = give(bytes.substr(noise));
  since_growth_ += given;
  held_ = noise + given < bytes.size();
  return noise + given;
}

// libssh's own window is 1.25 MB; a far host wants more of it to be fast.
void Link::grow_window() {
  if (state_ != State::running || !drained() || remote_ended_) return;
  if (since_growth_ < window_ / 2) return;
  loop_.scratch_.resize(kWindow + (std::size_t{2} << 20));
  window_ = kWindow;
  since_growth_ = 0;
  const int got = ssh_channel_read_timeout(channel_, loop_.scratch_.data(),
                                           static_cast<uint32_t>(kWindow), 0, 0);
  if (got > 0) {
    spill_.assign(loop_.scratch_.data(), static_cast<std::size_t>(got));
    held_ = true;
    to_local();
  }
}

void Link::advance() {
  if (state_ == State::waiting || state_ == State::opening) {
    bool abandoned = false;
    {
      const std::lock_guard guard(loop_.mutex_);
      abandoned = shared.abandoned;
    }
    if (abandoned && state_ == State::waiting) return finish(std::nullopt);
    open();
  }
  if (state_ != State::running) return;
  if (requesting_) {
    const int rc = ssh_channel_request_exec(channel_, target_.text.c_str());
    if (rc == SSH_ERROR && ssh_is_connected(loop_.session_.get())) {
      return finish(Error(ErrorCode::unreachable, loop_.name_ + ": it refuses to start a program"));
    }
    requesting_ = rc == SSH_AGAIN;
  }
  if (!input_.empty() && !eof_sent_ && !remote_closed_ && loop_.can_write()) {
    const std::size_t left = input_.size() - input_at_;
    const int wrote =
        ssh_channel_write(channel_, input_.data() + input_at_, static_cast<uint32_t>(left));
    if (wrote < 0) {
      input_.clear();
      local_ended_ = true;
    } else {
      input_at_ += static_cast<std::size_t>(wrote);
      if (input_at_ == input_.size()) input_.clear();
    }
  }
  if (local_ended_ && input_.empty() && !eof_sent_ && !remote_closed_) {
    eof_sent_ = true;
    ssh_channel_send_eof(channel_);
  }
  grow_window();
  if (marker_ && !marker_->found() && noise_ > kNoiseLimit) {
    return finish(Error(ErrorCode::failed, loop_.name_ + ": its login shell prints without end"));
  }
  if (remote_ended_ && drained() && !shut_) {
    shut_ = true;
    ::shutdown(local_.get(), SHUT_WR);
  }
  if (remote_closed_ && drained()) return finish(std::nullopt);

  bool abandoned = false;
  {
    const std::lock_guard guard(loop_.mutex_);
    abandoned = shared.abandoned;
  }
  if (target_.kind != Target::Kind::exec) {
    // A forward of which one side is gone altogether.
    if (local_gone_ || (eof_sent_ && remote_ended_ && drained())) finish(std::nullopt);
    return;
  }
  if (!abandoned && !(local_gone_ && eof_sent_)) return;
  if (!leaving_ || (eof_sent_ && !eof_noted_)) {
    leaving_ = true;
    eof_noted_ = eof_sent_;
    since_ = steady_clock::now();
  }
  if (steady_clock::now() - since_ > (eof_noted_ ? kGrace : kUnreadGrace)) {
    ssh_channel_request_send_signal(channel_, "KILL");
    finish(std::nullopt);
  }
}

void Link::finish(std::optional<Error> broken) {
  if (state_ == State::done) return;
  state_ = State::done;
  if (channel_ != nullptr) {
    ssh_remove_channel_callbacks(channel_, &callbacks_);
    ssh_channel_free(channel_);
    channel_ = nullptr;
  }
  if (counted_) --loop_.sessions_;
  counted_ = false;
  local_.reset();
  {
    const std::lock_guard guard(loop_.mutex_);
    if (marker_ && !marker_->found()) {
      shared.errors = marker_->noise() + shared.errors;
    } else if (!target_.marker.empty()) {
      // The marker stands in stderr too, after what the login shell said there.
      const std::size_t at = shared.errors.find(target_.marker + "\n");
      if (at != std::string::npos) shared.errors.erase(0, at + target_.marker.size() + 1);
    }
    shared.ended = true;
    shared.code = code_;
    if (!broken && !code_ && target_.kind == Target::Kind::exec && !shared.abandoned) {
      broken = Error(ErrorCode::unreachable,
                     loop_.name_ + ": the program's end was not told; its session was cut off");
    }
    shared.broken = std::move(broken);
  }
  loop_.changed();
}

}  // namespace dtrain::ssh
