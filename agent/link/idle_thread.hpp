#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <thread>

namespace dtrain::link {

// A context that runs on a thread of its own in idle priority: what takes long there takes no time
// from the ranks of this machine, nor from the head.
class IdleThread {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;

  IdleThread();
  ~IdleThread() { stop(); }
  void stop();  // ends it; nothing runs there from then on

  boost::asio::io_context& context() { return context_; }
  // The same connection, in this context.
  Socket take(Socket socket);

 private:
  boost::asio::io_context context_{1};
  std::thread thread_;
};

}  // namespace dtrain::link
