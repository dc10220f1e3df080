#include "launcher/remote/ssh/loop.hpp"

#include <libssh/server.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "launcher/core/no_signals.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::ssh {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A connection on which nothing was heard for so long is asked whether it lives, and given up.
constexpr std::chrono::seconds kAskAfter{5};
constexpr std::chrono::seconds kDeadAfter{15};
constexpr std::chrono::seconds kLinkLimit{30};
constexpr milliseconds kLastWords{200};
constexpr int kPacketsAtOnce = 256;  // reads of libssh, 4 KiB each, before others have a turn

}  // namespace

Loop::Loop(LoggedIn in, std::string name)
    : name_(std::move(name)), carrier_(std::move(in.carrier)), session_(std::move(in.session)) {
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) throw errno_error("cannot make an eventfd", errno);
  ssh_set_counters(session_.get(), &sent_, &received_);
  heard_ = asked_ = steady_clock::now();
}

Loop::~Loop() {
  stop();
}

void Loop::start() {
  const NoSignals none;
  thread_ = std::thread([this] { run(); });
}

void Loop::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
}

void Loop::post(std::function<void()> task) {
  {
    const std::lock_guard guard(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake();
}

void Loop::changed() {
  changed_.notify_all();
}

bool Loop::alive() const {
  const std::lock_guard guard(mutex_);
  return !ended_ && !stopping_;
}

bool Loop::wait_ended(milliseconds limit) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return ended_; });
}

void Loop::stop() {
  {
    const std::lock_guard guard(mutex_);
    stopping_ = true;
  }
  wake();
  const std::lock_guard guard(joining_);
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Link> Loop::join(Target target, UniqueFd local, milliseconds limit) {
  auto link = std::make_shared<Link>(*this, std::move(target), std::move(local));
  std::unique_lock lock(mutex_);
  if (ended_ || stopping_) {
    throw broken_ ? *broken_
                  : Error(ErrorCode::unreachable, name_ + ": the connection has been closed");
  }
  tasks_.push_back([this, link] { links_.push_back(link); });
  lock.unlock();
  wake();
  lock.lock();
  // A wait for MaxSessions is the link's own to limit.
  const milliseconds longest = kLinkLimit + std::chrono::seconds(5);
  const bool told = changed_.wait_for(lock, std::min(longest, limit),
                                      [&] { return link->shared.opened || link->shared.ended; });
  if (!told) {
    link->shared.abandoned = true;
    throw Error(ErrorCode::timeout, name_ + ": no answer to the opening of a channel");
  }
  if (link->shared.broken && !link->shared.opened) throw *link->shared.broken;
  return link;
}

void Loop::serve(UniqueFd listener, Target target, std::string path) {
  if (!alive()) throw Error(ErrorCode::unreachable, name_ + ": the connection has been closed");
  auto held =
      std::make_shared<Listener>(Listener{std::move(listener), std::move(target), std::move(path)});
  post([this, held] { listeners_.push_back(std::move(*held)); });
}

void Loop::abandon(const std::shared_ptr<Link>& link) {
  {
    const std::lock_guard guard(mutex_);
    link->shared.abandoned = true;
  }
  wake();
}

std::optional<int> Loop::wait(Link& link, milliseconds limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return link.shared.ended; });
  if (!link.shared.ended) return std::nullopt;
  if (link.shared.broken) throw *link.shared.broken;
  return link.shared.code;
}

std::string Loop::errors(Link& link) {
  const std::lock_guard guard(mutex_);
  std::string text = link.shared.errors;
  if (!link.shared.ended && !link.target_.marker.empty()) {
    const std::size_t at = text.find(link.target_.marker + "\n");
    if (at != std::string::npos) text.erase(0, at + link.target_.marker.size() + 1);
  }
  if (text.size() > link.target_.errors_kept) text.erase(0, text.size() - link.target_.errors_kept);
  return text;
}

bool Loop::session_free() const {
  return sessions_ < most_sessions_ || steady_clock::now() >= most_until_;
}

bool Loop::can_write() const {
  return (ssh_get_poll_flags(session_.get()) & SSH_WRITE_PENDING) == 0;
}

void Loop::take_tasks() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &count, sizeof count);
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard guard(mutex_);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) task();
}

void Loop::run() {
  try {
    loop();
  } catch (const Error& error) {
    break_all(error);
  } catch (const std::exception& error) {
    break_all(Error(ErrorCode::internal, name_ + ": " + error.what()));
  }
  // What was written goes out, and the host is told; then all that we hold is given back.
  const auto until = steady_clock::now() + kLastWords;
  bool broken = false;
  {
    const std::lock_guard guard(mutex_);
    broken = broken_.has_value();
  }
  while (!broken && steady_clock::now() < until && ssh_is_connected(session_.get())) {
    bool pending = !can_write();
    for (const auto& link : links_) {
      if (link->state_ != Link::State::running) continue;
      link->from_local();
      link->advance();
      pending = pending || !link->input_.empty();
    }
    pump_session();
    if (!pending) break;
    pollfd waiting{ssh_get_fd(session_.get()), POLLIN | POLLOUT, 0};
    ::poll(&waiting, 1, 5);
  }
  const Error closed(ErrorCode::unreachable, name_ + ": the connection has been closed");
  for (const auto& link : links_) link->finish(closed);
  links_.clear();
  drop_listeners();
  if (broken) {
    ssh_silent_disconnect(session_.get());
  } else {
    ssh_disconnect(session_.get());
  }
  std::vector<std::function<void()>> left;
  {
    const std::lock_guard guard(mutex_);
    ended_ = true;
    left.swap(tasks_);
  }
  // Links whose task never ran: they must hear of the end too.
  for (const auto& task : left) task();
  for (const auto& link : links_) link->finish(broken_ ? *broken_ : closed);
  links_.clear();
  drop_listeners();
  changed();
}

void Loop::loop() {
  std::vector<pollfd> polled;
  while (true) {
    {
      const std::lock_guard guard(mutex_);
      if (stopping_) return;
    }
    polled.clear();
    short session_events = POLLIN;
    if (!can_write()) session_events |= POLLOUT;
    polled.push_back({ssh_get_fd(session_.get()), session_events, 0});
    polled.push_back({wake_.get(), POLLIN, 0});
    polled.push_back({carrier_.proxy ? carrier_.proxy->errors_fd() : -1, POLLIN, 0});
    for (const Listener& listener : listeners_) polled.push_back({listener.fd.get(), POLLIN, 0});
    auto limit = milliseconds(1000);
    for (const auto& link : links_) {
      short events = 0;
      if (link->wants_input()) events |= POLLIN;
      if (!link->spill_.empty() || link->held_) events |= POLLOUT;
      // A hangup is told even to those who want nothing: such are left out.
      polled.push_back({events == 0 ? -1 : link->local_.get(), events, 0});
      if (link->leaving_) limit = std::min(limit, milliseconds(50));
      if (link->may_open()) limit = milliseconds(0);
      if (link->state_ == Link::State::waiting) limit = std::min(limit, milliseconds(50));
    }
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(limit.count()));
    if (ready < 0 && errno != EINTR) throw errno_error(name_ + ": cannot wait", errno);

    if ((polled[1].revents & POLLIN) != 0) take_tasks();
    if (polled[2].revents != 0) carrier_.proxy->errors();  // so that it is read
    std::size_t at = 3;
    for (Listener& listener : listeners_) {
      if (at < polled.size() && polled[at].fd == listener.fd.get() &&
          (polled[at].revents & POLLIN) != 0) {
        accept_from(listener);
      }
      ++at;
    }
    if (polled[0].revents != 0) pump_session();
    for (const auto& link : links_) {
      if (link->wants_input()) link->from_local();
      if (!link->spill_.empty() || link->held_) link->to_local();
      link->advance();
    }
    links_.remove_if([](const auto& link) { return link->state_ == Link::State::done; });
    check_broken();
    keep_alive();
  }
}

void Loop::pump_session() {
  for (int i = 0; i < kPacketsAtOnce; ++i) {
    const auto before = received_.in_bytes + sent_.out_bytes;
    ssh_execute_message_callbacks(session_.get());
    if (received_.in_bytes + sent_.out_bytes == before) return;
  }
}

void Loop::check_broken() {
  if (ssh_is_connected(session_.get()) &&
      (ssh_get_status(session_.get()) & (SSH_CLOSED | SSH_CLOSED_ERROR)) == 0) {
    return;
  }
  std::string why = printable(ssh_get_error(session_.get()), false);
  const std::string said = carrier_.proxy_said();
  if (!said.empty()) why += "; the proxy command said: " + said;
  throw Error(ErrorCode::unreachable, name_ + ": the connection broke: " + why);
}

void Loop::keep_alive() {
  const auto now = steady_clock::now();
  if (received_.in_bytes != heard_bytes_) {
    heard_bytes_ = received_.in_bytes;
    heard_ = now;
  }
  if (now - heard_ >= kDeadAfter) {
    throw Error(ErrorCode::unreachable,
                name_ + ": the connection broke: nothing was heard for 15 s");
  }
  if (now - heard_ < kAskAfter || now - asked_ < kAskAfter) return;
  asked_ = now;
  const auto before = sent_.out_bytes;
  ssh_send_keepalive(session_.get());
  // The first call may only have taken the answer to the last one.
  if (sent_.out_bytes == before && can_write()) ssh_send_keepalive(session_.get());
}

void Loop::drop_listeners() {
  for (const Listener& listener : listeners_) {
    if (listener.path.empty()) continue;
    ::unlink(listener.path.c_str());
    ::rmdir(fs::path(listener.path).parent_path().c_str());  // made for it; else it is not empty
  }
  listeners_.clear();
}

void Loop::accept_from(Listener& listener) {
  while (true) {
    UniqueFd accepted(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!accepted) return;
    links_.push_back(std::make_shared<Link>(*this, listener.target, std::move(accepted)));
  }
}

void Loop::break_all(const Error& error) {
  {
    const std::lock_guard guard(mutex_);
    broken_ = error;
  }
  for (const auto& link : links_) link->finish(error);
  links_.clear();
}

}  // namespace dtrain::ssh
