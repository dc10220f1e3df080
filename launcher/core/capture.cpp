#include "launcher/core/capture.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/core/pipe.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/unique_fd.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kCaptureLimit = std::size_t{16} << 20;

}  // namespace

Captured capture(SpawnOptions options, std::string_view input, std::chrono::milliseconds deadline) {
  auto [in_reader, in_writer] = make_pipe();
  auto [out_reader, out_writer] = make_pipe();
  auto [err_reader, err_writer] = make_pipe();
  options.stdin_fd = in_reader.get();
  options.stdout_fd = out_writer.get();
  options.stderr_fd = err_writer.get();
  options.new_session = true;

  Captured result;
  const auto until = std::chrono::steady_clock::now() + deadline;
  const pid_t pid = spawn(options);
  in_reader.reset();
  out_writer.reset();
  err_writer.reset();
  for (UniqueFd* fd : {&in_writer, &out_reader, &err_reader}) {
    ::fcntl(fd->get(), F_SETFL, O_NONBLOCK);
  }
  // A write to a program that has closed its stdin must be an error and not a signal.
  sigset_t pipe_signal;
  sigset_t before;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);

  const auto drain = [](UniqueFd& fd, std::string& into) {
    std::array<char, 65536> buffer;
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got > 0 && into.size() < kCaptureLimit) {
      into.append(buffer.data(), static_cast<std::size_t>(got));
    }
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) fd.reset();
  };
  while (out_reader || err_reader) {
    if (input.empty()) in_writer.reset();
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      result.timed_out = true;
      break;
    }
    std::array<pollfd, 3> polled{{{in_writer.get(), POLLOUT, 0},
                                  {out_reader.get(), POLLIN, 0},
                                  {err_reader.get(), POLLIN, 0}}};
    if (::poll(polled.data(), polled.size(), static_cast<int>(left.count())) < 0 &&
        errno != EINTR) {
      break;
    }
    if (in_writer && polled[0].revents != 0) {
      const ssize_t wrote = ::write(in_writer.get(), input.data(), input.size());
      if (wrote > 0) input.remove_prefix(static_cast<std::size_t>(wrote));
      if (wrote < 0 && errno != EAGAIN && errno != EINTR) in_writer.reset();
    }
    if (out_reader && polled[1].revents != 0) drain(out_reader, result.out);
    if (err_reader && polled[2].revents != 0) drain(err_reader, result.err);
  }
  const timespec zero{};
  while (::sigtimedwait(&pipe_signal, nullptr, &zero) > 0) {
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  // It may have closed its outputs and run on.
  if (!result.timed_out) {
    if (const auto exit = wait_until(pid, until)) {
      result.exit = *exit;
      return result;
    }
    result.timed_out = true;
  }
  ::kill(-pid, SIGKILL);
  result.exit = wait(pid);
  return result;
}

}  // namespace dtrain
