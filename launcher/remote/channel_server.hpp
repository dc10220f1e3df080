#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "launcher/core/files.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/remote/transport.hpp"

namespace dtrain {

// A unix socket here, for this user alone, whose every connection is joined to the stdio of a
// program somewhere. Each has a thread. The destructor hangs up on all of them.
class ChannelServer {
 public:
  // `open` starts the program, on the connection's thread; when it throws, that is hung up on.
  // Throws Error where nothing can listen there.
  ChannelServer(fs::path path, std::function<std::unique_ptr<Channel>()> open);
  ~ChannelServer();
  ChannelServer(const ChannelServer&) = delete;
  ChannelServer& operator=(const ChannelServer&) = delete;

  const fs::path& path() const noexcept { return path_; }

 private:
  struct Connection {
    bool over = false;  // under the mutex: its thread is about to end
    std::thread thread;
  };
  void accept();
  void serve(Connection& connection, UniqueFd& socket);
  void join_ended();

  const fs::path path_;
  const std::function<std::unique_ptr<Channel>()> open_;
  UniqueFd listener_;
  UniqueFd ended_;     // readable once all is to end
  UniqueFd ends_all_;  // its other end
  std::mutex mutex_;
  std::list<Connection> connections_;
  std::thread thread_;
};

}  // namespace dtrain
