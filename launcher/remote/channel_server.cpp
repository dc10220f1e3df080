#include "launcher/remote/channel_server.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <utility>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/pipe.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kPiece = std::size_t{64} << 10;
constexpr std::chrono::milliseconds kNoDescriptors{100};

// One direction: what was read and not yet written.
class Flow {
 public:
  Flow(int from, int to) : from_(from), to_(to), bytes_(kPiece) {}

  bool over() const { return told_; }
  pollfd wanted() const {
    if (told_) return {-1, 0, 0};
    if (begin_ != end_) return {to_, POLLOUT, 0};
    return {from_, POLLIN, 0};
  }
  // False when a side is gone.
  bool go_on() {
    if (begin_ == end_) {
      const ssize_t got = ::recv(from_, bytes_.data(), bytes_.size(), MSG_DONTWAIT);
      if (got < 0) return errno == EAGAIN || errno == EINTR;
      if (got == 0) {
        told_ = true;
        ::shutdown(to_, SHUT_WR);
        return true;
      }
      begin_ = 0;
      end_ = static_cast<std::size_t>(got);
    }
    const ssize_t sent =
        ::send(to_, bytes_.data() + begin_, end_ - begin_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    begin_ += static_cast<std::size_t>(sent);
    return true;
  }

 private:
  int from_;
  int to_;
  std::vector<char> bytes_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool told_ = false;
};

UniqueFd listen_at(const fs::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string& text = path.native();
  if (text.size() >= sizeof address.sun_path) {
    throw Error(ErrorCode::invalid, "the path is too long for a socket: " + text);
  }
  text.copy(address.sun_path, text.size());
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) throw errno_error("cannot make a socket", errno);
  ::unlink(text.c_str());
  // Its folder is this user's alone.
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::chmod(text.c_str(), 0600) != 0 || ::listen(listener.get(), SOMAXCONN) != 0) {
    throw errno_error("cannot listen on " + text, errno);
  }
  return listener;
}

}  // namespace

void join_sockets(int one, int other, int stop) {
  Flow there(one, other);
  Flow back(other, one);
  // When the other side has said all, nobody there reads what would still come from here.
  while (!back.over()) {
    std::array<pollfd, 3> waiting{{there.wanted(), back.wanted(), {stop, POLLIN, 0}}};
    if (::poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) return;
    if (waiting[2].revents != 0) return;
    if (waiting[0].revents != 0 && !there.go_on()) return;
    if (waiting[1].revents != 0 && !back.go_on()) return;
  }
}

ChannelServer::ChannelServer(fs::path path, std::function<std::unique_ptr<Channel>()> open)
    : path_(std::move(path)), open_(std::move(open)), listener_(listen_at(path_)) {
  auto [ended, ends_all] = make_pipe();
  ended_ = std::move(ended);
  ends_all_ = std::move(ends_all);
  thread_ = std::thread([this] { accept(); });
}

ChannelServer::~ChannelServer() {
  ends_all_.reset();
  thread_.join();
  for (Connection& each : connections_) each.thread.join();
  std::error_code none;
  fs::remove(path_, none);
}

void ChannelServer::accept() {
  while (true) {
    std::array<pollfd, 2> waiting{{{listener_.get(), POLLIN, 0}, {ended_.get(), POLLIN, 0}}};
    ::poll(waiting.data(), waiting.size(), -1);
    if (waiting[1].revents != 0) return;
    join_ended();
    auto socket =
        std::make_shared<UniqueFd>(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!*socket) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) continue;
      pollfd all_ends{ended_.get(), POLLIN, 0};
      ::poll(&all_ends, 1, static_cast<int>(kNoDescriptors.count()));
      continue;
    }
    const std::lock_guard lock(mutex_);
    Connection& connection = connections_.emplace_back();
    try {
      connection.thread = std::thread([this, &connection, socket] { serve(connection, *socket); });
    } catch (const std::exception&) {  // no more threads: hung up on, and the next is served
      connections_.pop_back();
    }
  }
}

void ChannelServer::serve(Connection& connection, UniqueFd& socket) {
  try {
    const std::unique_ptr<Channel> channel = open_();
    join_sockets(socket.get(), channel->fd(), ended_.get());
    socket.reset();                  // the program may take its time to end
  } catch (const std::exception&) {  // who connected sees that nobody answers
  }
  socket.reset();
  const std::lock_guard guard(mutex_);
  connection.over = true;
}

void ChannelServer::join_ended() {
  std::list<Connection> over;
  {
    const std::lock_guard lock(mutex_);
    for (auto each = connections_.begin(); each != connections_.end();) {
      const auto next = std::next(each);
      if (each->over) over.splice(over.end(), connections_, each);
      each = next;
    }
  }
  for (Connection& each : over) each.thread.join();
}

}  // namespace dtrain
