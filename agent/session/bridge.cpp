#include "agent/session/bridge.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/unique_fd.hpp"

namespace dtrain::session {
namespace {

UniqueFd connect_to(const fs::path& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = socket.string();
  if (path.size() >= sizeof address.sun_path) {
    throw Error(ErrorCode::internal, "the path of the head's socket is too long: " + path);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd ||
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw Error(ErrorCode::unreachable,
                "the head does not listen at " + path + ": " + std::strerror(errno));
  }
  return fd;
}

// One direction: what was read and not yet written.
class Flow {
 public:
  Flow(int from, int to) : from_(from), to_(to), bytes_(std::size_t{64} << 10) {}

  bool over() const { return ended_ && begin_ == end_; }
  bool wants_read() const { return !ended_ && begin_ == end_; }
  bool wants_write() const { return begin_ != end_; }
  int from() const { return from_; }
  int to() const { return to_; }

  // Both give false when their side is gone.
  void read() {
    const ssize_t got = ::read(from_, bytes_.data(), bytes_.size());
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      ended_ = true;
      return;
    }
    begin_ = 0;
    end_ = static_cast<std::size_t>(got);
  }
  bool write() {
    const ssize_t wrote = ::write(to_, bytes_.data() + begin_, end_ - begin_);
    if (wrote < 0) return errno == EAGAIN || errno == EINTR;
    begin_ += static_cast<std::size_t>(wrote);
    return true;
  }

 private:
  int from_;
  int to_;
  std::vector<char> bytes_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool ended_ = false;
};

}  // namespace

int bridge_main(const paths::HeadRoot& root) {
  ::signal(SIGPIPE, SIG_IGN);
  const UniqueFd head = connect_to(paths::head_socket(root.root));
  Flow in(STDIN_FILENO, head.get());
  Flow out(head.get(), STDOUT_FILENO);
  bool told_head = false;
  // The head's end is the end: nobody reads what would still come from our side.
  while (!out.over()) {
    if (in.over() && !told_head) {
      ::shutdown(head.get(), SHUT_WR);
      told_head = true;
    }
    std::array<pollfd, 4> waiting{{{in.wants_read() ? in.from() : -1, POLLIN, 0},
                                   {in.wants_write() ? in.to() : -1, POLLOUT, 0},
                                   {out.wants_read() ? out.from() : -1, POLLIN, 0},
                                   {out.wants_write() ? out.to() : -1, POLLOUT, 0}}};
    if (::poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) return 1;
    if (waiting[0].revents != 0) in.read();
    if (waiting[1].revents != 0 && !in.write()) return 1;
    if (waiting[2].revents != 0) out.read();
    if (waiting[3].revents != 0 && !out.write()) return 1;
  }
  return 0;
}

}  // namespace dtrain::session
