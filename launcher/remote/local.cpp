#include "launcher/remote/local.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kErrorsKept = std::size_t{16} << 10;

// A child with a socket pair as its stdio, and a pipe that its stderr fills.
class LocalChannel final : public Channel {
 public:
  explicit LocalChannel(const std::vector<std::string>& argv) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      throw errno_error("cannot make a socket pair", errno);
    }
    ours_.reset(ends[0]);
    const UniqueFd theirs(ends[1]);
    std::array<int, 2> pipe{};
    if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw errno_error("cannot make a pipe", errno);
    errors_from_.reset(pipe[0]);
    const UniqueFd errors_to(pipe[1]);
    ::fcntl(errors_from_.get(), F_SETFL, O_NONBLOCK);
    SpawnOptions options;
    options.argv = argv;
    options.env = current_environment();
    options.stdin_fd = theirs.get();
    options.stdout_fd = theirs.get();
    options.stderr_fd = errors_to.get();
    pid_ = spawn(options);
  }
  ~LocalChannel() override {
    ours_.reset();
    if (pid_ <= 0 || wait_ended(std::chrono::seconds(1))) return;
    ::kill(pid_, SIGKILL);
    dtrain::wait(pid_);
  }

  int fd() const override { return ours_.get(); }

  std::string errors() override {
    std::array<char, 4096> buffer{};
    ssize_t got = 0;
    while ((got = ::read(errors_from_.get(), buffer.data(), buffer.size())) > 0) {
      errors_.append(buffer.data(), static_cast<std::size_t>(got));
    }
    if (errors_.size() > kErrorsKept) errors_.erase(0, errors_.size() - kErrorsKept);
    return errors_;
  }

  std::optional<int> wait(std::chrono::milliseconds limit) override {
    wait_ended(limit);
    return code_;
  }

 private:
  bool wait_ended(std::chrono::milliseconds limit) {
    const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!code_) {
      errors();  // a child that fills the pipe would wait for us
      if (const auto exit = try_wait(pid_)) {
        code_ = exit->shell_code();
        break;
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          until - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      // A closed pipe is always readable, so it is looked at no more. Without pidfd (before Linux
      // 5.3) look every 10 ms.
      std::array<pollfd, 2> waiting{
          {{process.get(), POLLIN, 0}, {errors_ended_ ? -1 : errors_from_.get(), POLLIN, 0}}};
      ::poll(waiting.data(), waiting.size(),
             static_cast<int>(process ? left.count() : std::min<long>(left.count(), 10)));
      if ((waiting[1].revents & POLLHUP) != 0) errors_ended_ = true;
    }
    return true;
  }

  UniqueFd ours_;
  UniqueFd errors_from_;
  std::string errors_;
  bool errors_ended_ = false;
  pid_t pid_ = 0;
  std::optional<int> code_;
};

}  // namespace

std::unique_ptr<Channel> LocalTransport::open(const std::vector<std::string>& argv) {
  return std::make_unique<LocalChannel>(argv);
}

Captured LocalTransport::run(const std::vector<std::string>& argv, std::string_view input,
                             std::chrono::milliseconds deadline) {
  SpawnOptions options;
  options.argv = argv;
  options.env = current_environment();
  Captured captured = capture(options, input, deadline);
  if (captured.timed_out) {
    throw Error(ErrorCode::timeout,
                shell_join(argv) + " did not end within " + human_duration(deadline));
  }
  return captured;
}

void LocalTransport::put(std::string_view content, const fs::path& path, mode_t mode) {
  make_folders(path.parent_path());
  write_file_atomic(path, content, mode);
}

void LocalTransport::start_detached(const std::vector<std::string>& argv) {
  SpawnOptions options;
  options.argv = argv;
  options.env = current_environment();
  options.workdir = "/";  // a cluster must not keep the folder busy in which `up` was typed
  options.new_session = true;
  spawn(options);
}

fs::path LocalTransport::head_socket(const fs::path& head_root) {
  return paths::head_socket(head_root);
}

}  // namespace dtrain
