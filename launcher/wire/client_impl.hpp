#pragma once

#include <chrono>
#include <stop_token>
#include <string>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"

// How the client's sources speak HTTP to the head's socket; for them only.
namespace dtrain::wire {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Socket = asio::local::stream_protocol::socket;
using boost::system::error_code;

inline constexpr std::size_t kAnswerLimit = std::size_t{64} << 20;

Error unreachable(const std::string& cluster, const std::string& why);
Socket connect_or_throw(asio::io_context& io, const fs::path& path, const std::string& cluster);

// How long an answer is waited for.
struct Patience {
  std::chrono::milliseconds limit;  // of each step
  std::stop_token stop;             // nobody wants it any more
};

// Runs what was started on `io` until `done`; false when patience ends first.
bool run_until(asio::io_context& io, const bool& done, const Patience& patience);
Error given_up(const std::string& cluster, const Patience& patience);

// What an asynchronous operation left behind. Outlives the operation: the socket is closed and the
// io_context is drained before it goes.
struct Outcome {
  bool done = false;
  error_code error;
};

inline auto into(Outcome& outcome) {
  return [&outcome](error_code error, std::size_t) {
    outcome.done = true;
    outcome.error = error;
  };
}

// One exchange over a connection of its own.
class Exchange {
 public:
  Exchange(const fs::path& path, const std::string& cluster, Patience patience)
      : cluster_(cluster),
        patience_(std::move(patience)),
        socket_(connect_or_throw(io_, path, cluster)) {}
  ~Exchange() {
    error_code ignored;
    socket_.close(ignored);
    io_.restart();
    io_.poll();
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  template <typename Start>
  error_code run(Start start) {
    Outcome outcome;
    start(into(outcome));
    if (!run_until(io_, outcome.done, patience_)) {
      error_code ignored;
      socket_.close(ignored);
      io_.restart();
      io_.poll();
      throw given_up(cluster_, patience_);
    }
    return outcome.error;
  }
  template <typename Start>
  void run_or_throw(Start start) {
    if (const error_code error = run(start)) {
      throw unreachable(cluster_, "broke the connection (" + error.message() + ")");
    }
  }

  Socket& socket() { return socket_; }

 private:
  asio::io_context io_{1};
  std::string cluster_;
  Patience patience_;
  Socket socket_;
};

http::request<http::string_body> make_request(http::verb verb, const std::string& target,
                                              const std::string& body);
[[noreturn]] void throw_refusal(unsigned status, const std::string& body);

}  // namespace dtrain::wire
