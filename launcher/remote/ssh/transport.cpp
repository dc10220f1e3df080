#include "launcher/remote/ssh/transport.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/ssh/command.hpp"

namespace dtrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kCaptureLimit = std::size_t{16} << 20;
constexpr milliseconds kPutLimit{60000};
constexpr milliseconds kAskLimit{20000};

// A program is started in the home folder there, so what is below the home is a relative path.
std::string below_home(const std::string& path) {
  return path.rfind("~/", 0) == 0 ? "./" + path.substr(2) : path;
}

std::vector<std::string> at_home(std::vector<std::string> argv) {
  if (argv.empty()) throw Error(ErrorCode::invalid, "there is no program to start");
  argv[0] = below_home(argv[0]);
  return argv;
}

// Sends all of `input`, then its end, and collects what comes until the other side ends.
bool exchange(int fd, std::string_view input, std::string& out, steady_clock::time_point until) {
  bool sending = true;
  std::array<char, 65536> buffer{};
  while (true) {
    if (sending && input.empty()) {
      ::shutdown(fd, SHUT_WR);
      sending = false;
    }
    const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd waiting{fd, static_cast<short>(sending ? POLLIN | POLLOUT : POLLIN), 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::min<long>(left, 60000)));
    if (ready <= 0) continue;
    if (sending && (waiting.revents & POLLOUT) != 0) {
      const ssize_t sent = ::send(fd, input.data(), input.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) input.remove_prefix(static_cast<std::size_t>(sent));
      if (sent < 0 && errno != EAGAIN && errno != EINTR) input = {};  // it reads no more
    }
    if ((waiting.revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
    const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return true;
    if (got > 0 && out.size() < kCaptureLimit) {
      out.append(buffer.data(),
                 std::min(static_cast<std::size_t>(got), kCaptureLimit - out.size()));
    }
  }
}

}  // namespace

SshTransport::SshTransport(std::shared_ptr<SshConnection> connection)
    : connection_(std::move(connection)) {}

Captured SshTransport::run(const std::vector<std::string>& argv, std::string_view input,
                           milliseconds deadline) {
  const auto until = steady_clock::now() + deadline;
  SshExec options;
  options.marker = ssh::make_marker();
  options.errors_kept = kCaptureLimit;
  const auto channel = connection_->exec(
      ssh::shell_command(ssh::marked_script(options.marker, "exec " + shell_join(at_home(argv)))),
      options);
  Captured captured;
  const bool ended = exchange(channel->fd(), input, captured.out, until);
  const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now());
  const auto code = ended ? channel->wait(std::max(left, milliseconds(0))) : std::nullopt;
  if (!code) {
    throw Error(ErrorCode::timeout, connection_->name() + ": " + shell_join(argv) +
                                        " did not end within " + human_duration(deadline));
  }
  captured.exit.code = *code;
  captured.err = channel->errors();
  return captured;
}

std::unique_ptr<Channel> SshTransport::open(const std::vector<std::string>& argv) {
  SshExec options;
  options.marker = ssh::make_marker();
  return connection_->exec(
      ssh::shell_command(ssh::marked_script(options.marker, "exec " + shell_join(at_home(argv)))),
      options);
}

void SshTransport::put(std::string_view content, const fs::path& path, mode_t mode) {
  while_doing("writing " + path.native() + " on " + connection_->name(),
              [&] { put_by_shell(*this, content, below_home(path.native()), mode, kPutLimit); });
}

void SshTransport::start_detached(const std::vector<std::string>& argv) {
  std::vector<std::string> words = {
      "/bin/sh", "-c",
      // A session of its own where setsid is there; else at least deaf to the end of this one.
      "command -v -- \"$1\" >/dev/null 2>&1 || { echo \"there is no program $1\" >&2; exit 127; }; "
      "cd / || exit 1; "
      "if command -v setsid >/dev/null 2>&1; then setsid \"$@\" </dev/null >/dev/null 2>&1 & "
      "else trap '' HUP; \"$@\" </dev/null >/dev/null 2>&1 & fi",
      "start"};
  std::vector<std::string> program = at_home(argv);
  if (program[0].rfind("./", 0) == 0) {
    // It is started in /, so it has to be named from there.
    words[2] = "p=\"$PWD/${1#./}\"; shift; set -- \"$p\" \"$@\"; " + words[2];
  }
  words.insert(words.end(), program.begin(), program.end());
  run_or_throw(*this, words, {}, kAskLimit, "starting " + argv[0]);
}

std::string SshTransport::remote_head_socket(const fs::path& head_root) {
  const std::string said =
      run_or_throw(*this, {"/bin/sh", "-c", "pwd"}, {}, kAskLimit, "asking for the home");
  const std::string home = said.substr(0, said.find('\n'));
  if (home.empty() || home.front() != '/') {
    throw Error(ErrorCode::failed, connection_->name() + " does not tell its home");
  }
  std::string root = head_root.native();
  if (root.rfind("~/", 0) == 0) root = home + root.substr(1);
  return paths::head_socket_of(root);
}

fs::path SshTransport::head_socket(const HeadPlace& head) {
  const std::lock_guard guard(mutex_);
  if (!local_socket_.empty()) return local_socket_;
  const std::string there =
      head.socket.empty() ? remote_head_socket(head.root) : head.socket.string();
  const fs::path folder = paths::socket_folder("/ssh/" + connection_->name() + "/" +
                                               head.root.native() + "/" + random_hex(6));
  fs::path socket = folder / "head.sock";
  std::string bridge;
  if (!head.bridge.empty()) bridge = ssh::shell_command(at_home(head.bridge));
  connection_->serve_unix(socket, there, bridge);
  local_socket_ = socket;
  return socket;
}

}  // namespace dtrain
