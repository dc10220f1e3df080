#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "launcher/core/clock.hpp"
#include "launcher/core/files.hpp"

// The CLI's end of the head's API (docs/api.md) over its unix socket. Blocking, for one thread;
// each request makes its own connection, so a head that was started again is simply met anew.
namespace dtrain::wire {

// A WebSocket to the head. One thread. What arrives is taken by wait(); what is sent is queued and
// leaves while wait() runs.
class ApiStream {
 public:
  enum class What : std::uint8_t {
    text,     // a text frame is in data()
    binary,   // a binary frame is in data()
    input,    // the watched descriptor `fd` can be read
    closed,   // the head closed it in good order, or went away; nothing more will come
    timeout,  // the deadline passed
  };
  struct Event {
    What what = What::timeout;
    int fd = -1;
  };

  ApiStream(ApiStream&&) noexcept;
  ApiStream& operator=(ApiStream&&) noexcept;
  ~ApiStream();

  // Reports `fd` as readable from now on. A descriptor that cannot be polled (a regular file) is
  // always readable. It stays the caller's, blocking or not as it was.
  void watch(int fd);
  void unwatch(int fd);

  // The next thing that happens, at the latest at `deadline` (absent: no limit). A frame already
  // here goes before inputs. Never throws for what the other side does: that is `closed`.
  Event wait(std::optional<Monotonic> deadline = std::nullopt);
  // The frame of the last wait(); valid until the next one.
  std::string_view data() const;
  // True when wait() would return a frame at once.
  bool ready();

  void send_text(std::string text);
  void send_binary(std::string bytes);
  // Bytes queued and not yet written: stop reading your input while this is large.
  std::size_t queued() const;
  // Sends until less than `bytes` are queued. False when something arrived or the connection ended
  // first, or nothing was taken for `silence`: wait() says what.
  bool send_below(std::size_t bytes, std::chrono::milliseconds silence);

 private:
  friend class ApiClient;
  struct Impl;
  explicit ApiStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class ApiClient {
 public:
  // `cluster` is for messages only.
  ApiClient(fs::path socket, std::string cluster);

  const fs::path& socket() const noexcept { return socket_; }
  // The same for requests that end when `stop` is requested, from any thread. Streams that are open
  // go on: they can watch.
  ApiClient stopped_by(std::stop_token stop) const;

  // Each throws the head's own Error, Error(unreachable) when nobody answers at the socket or the
  // connection breaks, Error(timeout) when the answer takes longer than `limit` or is not wanted
  // any more, Error(exhausted) when it is too large.
  nlohmann::json get(const std::string& target, std::chrono::milliseconds limit = kLimit) const;
  nlohmann::json post(const std::string& target, const nlohmann::json& body,
                      std::chrono::milliseconds limit = kLimit) const;
  nlohmann::json remove(const std::string& target, std::chrono::milliseconds limit = kLimit) const;

  ApiStream open(const std::string& target, std::chrono::milliseconds limit = kLimit) const;

  // True when somebody accepts connections at the socket; takes microseconds.
  bool answers() const;

  static constexpr std::chrono::milliseconds kLimit{30000};

 private:
  nlohmann::json request(int verb, const std::string& target, const std::string& body,
                         std::chrono::milliseconds limit) const;

  fs::path socket_;
  std::string cluster_;
  std::stop_token stop_;
};

// A path or query part with everything but unreserved characters as %XX; '/' stays with
// keep_slashes.
std::string percent_encode(std::string_view text, bool keep_slashes = false);

}  // namespace dtrain::wire
