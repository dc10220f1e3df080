#include "launcher/core/join_streams.hpp"

#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <vector>

namespace dtrain {
namespace {

constexpr std::size_t kPiece = std::size_t{64} << 10;

// One direction: what was read and not yet written.
class Flow {
 public:
  Flow(int from, int to) : from_(from), to_(to), bytes_(kPiece) {}

  bool over() const { return over_; }
  bool has_some() const { return begin_ != end_; }
  void give_up() { over_ = true; }
  pollfd wanted() const {
    if (over_) return {-1, 0, 0};
    if (has_some()) return {to_, POLLOUT, 0};
    return {from_, POLLIN, 0};
  }
  // What was wanted can be done. False when a side is gone.
  bool go_on() { return has_some() ? write() : read(); }

 private:
  bool read() {
    ssize_t got = ::recv(from_, bytes_.data(), bytes_.size(), MSG_DONTWAIT);
    if (got < 0 && errno == ENOTSOCK) got = ::read(from_, bytes_.data(), bytes_.size());
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) {
      over_ = true;
      ::shutdown(to_, SHUT_WR);
    }
    begin_ = 0;
    end_ = static_cast<std::size_t>(got);
    return true;
  }
  bool write() {
    const std::size_t size = end_ - begin_;
    ssize_t put = ::send(to_, bytes_.data() + begin_, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    // A pipe that can be written takes so much at least without making us wait.
    if (put < 0 && errno == ENOTSOCK) {
      put = ::write(to_, bytes_.data() + begin_, std::min<std::size_t>(size, PIPE_BUF));
    }
    if (put < 0) return errno == EAGAIN || errno == EINTR;
    begin_ += static_cast<std::size_t>(put);
    return true;
  }

  int from_;
  int to_;
  std::vector<char> bytes_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool over_ = false;
};

}  // namespace

bool join_streams(StreamEnd near, StreamEnd far, std::optional<int> stop) {
  Flow there(near.in, far.out);
  Flow back(far.in, near.out);
  while (!back.over()) {
    std::array<pollfd, 3> waiting{{there.wanted(), back.wanted(), {stop.value_or(-1), POLLIN, 0}}};
    if (::poll(waiting.data(), waiting.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    if (waiting[2].revents != 0) return false;
    const bool writes = there.has_some();
    if (waiting[0].revents != 0 && !there.go_on()) {
      if (!writes) return false;
      there.give_up();  // far hears no more: why, it may have said before it went
    }
    if (waiting[1].revents != 0 && !back.go_on()) return false;
  }
  return true;
}

}  // namespace dtrain
