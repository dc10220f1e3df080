#pragma once

#include <chrono>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "launcher/core/clock.hpp"
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

// Runs what was started on `io` until `done`; false when the time is over first.
bool run_until(asio::io_context& io, const bool& done, Monotonic deadline);

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
  Exchange(const fs::path& path, const std::string& cluster, std::chrono::milliseconds limit)
      : cluster_(cluster), limit_(limit), socket_(connect_or_throw(io_, path, cluster)) {}
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
    if (!run_until(io_, outcome.done, std::chrono::steady_clock::now() + limit_)) {
      error_code ignored;
      socket_.close(ignored);
      io_.restart();
      io_.poll();
      throw Error(ErrorCode::timeout, "the head of cluster " + cluster_ + " took longer than " +
                                          std::to_string(limit_.count() / 1000) + " s to answer");
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
  std::chrono::milliseconds limit_;
  Socket socket_;
};

http::request<http::string_body> make_request(http::verb verb, const std::string& target,
                                              const std::string& body);
[[noreturn]] void throw_refusal(unsigned status, const std::string& body);

}  // namespace dtrain::wire
