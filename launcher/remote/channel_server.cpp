#include "launcher/remote/channel_server.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <exception>
#include <utility>

#include "launcher/core/join_streams.hpp"
#include "launcher/core/no_signals.hpp"
#include "launcher/core/pipe.hpp"
#include "launcher/core/unix_socket.hpp"

namespace dtrain {
namespace {

constexpr std::chrono::milliseconds kNoDescriptors{100};

}  // namespace

ChannelServer::ChannelServer(fs::path path, std::function<std::unique_ptr<Channel>()> open)
    : path_(std::move(path)), open_(std::move(open)), listener_(listen_unix(path_)) {
  auto [ended, ends_all] = make_pipe();
  ended_ = std::move(ended);
  ends_all_ = std::move(ends_all);
  const NoSignals none;  // nor in the threads of connections
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
    join_streams(socket.get(), channel->fd(), ended_.get());
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
