#include "launcher/remote/piped_child.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "launcher/core/error.hpp"
#include "launcher/core/pipe.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"

namespace dtrain {
namespace {

constexpr std::chrono::seconds kPatience{1};

}  // namespace

PipedChild::PipedChild(const std::vector<std::string>& argv, bool new_session,
                       std::size_t errors_kept)
    : has_session_(new_session), errors_kept_(errors_kept) {
  auto [ours, theirs] = make_socket_pair();
  stdio = std::move(ours);
  auto [errors_from, errors_to] = make_pipe();
  errors_from_ = std::move(errors_from);
  ::fcntl(errors_from_.get(), F_SETFL, O_NONBLOCK);
  SpawnOptions options;
  options.argv = argv;
  options.stdin_fd = theirs.get();
  options.stdout_fd = theirs.get();
  options.stderr_fd = errors_to.get();
  options.new_session = new_session;
  pid_ = spawn(options);
}

PipedChild::~PipedChild() {
  stdio.reset();
  const pid_t target = has_session_ ? -pid_ : pid_;
  try {
    if (!exit_ && has_session_) ::kill(target, SIGTERM);
    if (wait(kPatience)) return;
    ::kill(target, SIGKILL);
    dtrain::wait(pid_);
  } catch (const Error&) {  // it is no child of ours any more
  }
}

const std::string& PipedChild::errors() {
  std::array<char, 4096> buffer{};
  ssize_t got = 0;
  while (errors_from_ && (got = ::read(errors_from_.get(), buffer.data(), buffer.size())) > 0) {
    errors_.append(buffer.data(), static_cast<std::size_t>(got));
    if (errors_.size() > errors_kept_) errors_.erase(0, errors_.size() - errors_kept_);
  }
  if (got == 0) errors_from_.reset();
  return errors_;
}

std::optional<ProcessExit> PipedChild::wait(std::chrono::milliseconds limit) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!exit_) {
    errors();  // a child that fills the pipe would wait for us
    exit_ = try_wait(pid_);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (exit_ || left.count() <= 0) break;
    // Without pidfd (before Linux 5.3) look every 10 ms.
    std::array<pollfd, 2> waiting{{{process.get(), POLLIN, 0}, {errors_from_.get(), POLLIN, 0}}};
    ::poll(waiting.data(), waiting.size(),
           static_cast<int>(process ? left.count() : std::min<long>(left.count(), 10)));
  }
  return exit_;
}

}  // namespace dtrain
