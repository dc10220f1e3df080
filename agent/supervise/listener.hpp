#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>

#include "launcher/core/files.hpp"
#include "launcher/core/unique_fd.hpp"

namespace dtrain::supervise {

// A socket that is listened at, at its path for as long as this lives: where somebody takes it
// away, as who cleans /tmp does, it is made again within about a second. Those whose connections
// were accepted keep them. All on the thread of `io`.
class Listener {
 public:
  // `come` is called when somebody waits. Throws Error when the path cannot be listened at.
  Listener(boost::asio::io_context& io, const fs::path& path, std::function<void()> come);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // The next who waits, as accept_own() has it; absent too while nobody can be taken, as where no
  // descriptor is left, and `come` is called again a moment later.
  std::optional<UniqueFd> accept();
  // While it is paused nobody is told by `come`: who connects waits to be accepted, and once as
  // many wait as the kernel keeps, in connect(). A socket that is taken away meanwhile is made
  // again only after that, for those who wait at it would be lost.
  void pause(bool paused);
  // Nobody comes any more, and the socket is removed.
  void close();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace dtrain::supervise
