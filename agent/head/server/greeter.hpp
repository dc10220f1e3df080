#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "agent/head/server/greetings.hpp"
#include "agent/head/server/head_port.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/wire/frames.hpp"

namespace boost::asio::ssl {
class context;
}

namespace dtrain::head {

// Greets who comes to the cluster's port, on a thread of its own: a handshake takes more than a
// millisecond of a processor, and a thousand nodes that come back at once shall not keep those
// waiting who are in. One at a time is computed, whatever comes; the rest waits in the kernel, not
// accepted yet, and in Greetings, which bounds it.
class Greeter {
 public:
  struct Greeted {
    wire::CallerPtr caller;
    std::string body;              // of the request of one that is to join, where it has any
    std::optional<Error> no_body;  // why it is not read
  };
  // Who has proven who it is; on the thread of `there`.
  using Take = std::function<void(Greeted)>;

  // `port` is of `here`, which runs on the Greeter's thread from now on and outlives `there`: what
  // was greeted may still be of it. `identity` is the head's: read anew when it has been written
  // anew, so that a renewed one counts at once.
  Greeter(boost::asio::io_context& here, HeadPort& port, boost::asio::io_context& there,
          fs::path identity, Take take);
  // Nobody is greeted any more.
  ~Greeter();
  Greeter(const Greeter&) = delete;
  Greeter& operator=(const Greeter&) = delete;

 private:
  using Socket = boost::asio::ip::tcp::socket;
  void greet(Socket socket);
  boost::asio::awaitable<void> welcome(Socket socket, std::uint64_t number);
  std::shared_ptr<boost::asio::ssl::context> own_identity();
  void tell_drops();

  boost::asio::io_context& here_;
  boost::asio::io_context& there_;
  const fs::path identity_folder_;
  const Take take_;

  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::shared_ptr<boost::asio::ssl::context> identity_;  // null before the first connection
  fs::file_time_type identity_written_;
  Greetings greetings_;
  std::uint64_t drops_told_ = 0;
  std::chrono::steady_clock::time_point drops_told_at_;
  std::thread thread_;
};

}  // namespace dtrain::head
