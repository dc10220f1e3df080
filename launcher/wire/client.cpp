#include "launcher/wire/client.hpp"

#include <fcntl.h>

#include <deque>
#include <map>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/beast/websocket.hpp>
#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/unix_socket.hpp"
#include "launcher/wire/client_impl.hpp"
#include "launcher/wire/downloads.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/limits.hpp"

namespace dtrain::wire {
namespace websocket = beast::websocket;

// ---- ApiStream

struct ApiStream::Impl {
  struct Watched {
    explicit Watched(asio::io_context& io) : descriptor(io) {}
    asio::posix::stream_descriptor descriptor;
    int flags = 0;  // of the descriptor, as its owner has it
    bool pollable = true;
    bool armed = false;
    bool ready = false;
  };
  struct Outgoing {
    bool text = true;
    std::string bytes;
  };

  asio::io_context io{1};
  websocket::stream<Socket, false> socket;
  beast::flat_buffer buffer;
  bool reading = false;
  bool frame = false;     // a frame is in the buffer, not handed out yet
  bool consumed = false;  // the frame was handed out and may go at the next wait()
  bool broken = false;
  bool writing = false;
  std::deque<Outgoing> queue;
  std::size_t queued = 0;
  std::map<int, std::unique_ptr<Watched>> watched;

  explicit Impl(Socket connected) : socket(std::move(connected)) {}
  Impl(const fs::path& path, const std::string& cluster)
      : socket(connect_or_throw(io, path, cluster)) {}
  ~Impl() {
    error_code ignored;
    socket.next_layer().close(ignored);
    for (auto& [fd, entry] : watched) entry->descriptor.release();
    io.restart();
    io.poll();  // handlers of what is watched, too
  }

  void read() {
    if (reading || frame || broken) return;
    reading = true;
    socket.async_read(buffer, [this](error_code error, std::size_t) {
      reading = false;
      if (error) {
        broken = true;
      } else {
        frame = true;
      }
    });
  }

  void write() {
    if (writing || queue.empty() || broken) return;
    writing = true;
    socket.text(queue.front().text);
    socket.async_write(asio::buffer(queue.front().bytes), [this](error_code error, std::size_t) {
      writing = false;
      queued -= queue.front().bytes.size();
      queue.pop_front();
      if (!error) write();  // an error shows at the read too
    });
  }

  void arm() {
    for (auto& [fd, entry] : watched) {
      if (entry->armed || entry->ready) continue;
      if (!entry->pollable) {
        entry->ready = true;
        continue;
      }
      entry->armed = true;
      Watched* target = entry.get();
      entry->descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                                   [target](error_code error) {
                                     if (error == asio::error::operation_aborted) return;
                                     target->armed = false;
                                     target->ready = true;
                                   });
      // Asio has made it non-blocking, for all who share it: writers to it would lose bytes.
      if (entry->flags >= 0) ::fcntl(fd, F_SETFL, entry->flags);
    }
  }

  void run(std::optional<Monotonic> deadline) {
    if (io.stopped()) io.restart();
    if (deadline) {
      io.run_one_until(*deadline);
    } else {
      io.run_one();
    }
  }
};

ApiStream::ApiStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ApiStream::ApiStream(ApiStream&&) noexcept = default;
ApiStream& ApiStream::operator=(ApiStream&&) noexcept = default;
ApiStream::~ApiStream() = default;

void ApiStream::watch(int fd) {
  auto entry = std::make_unique<Impl::Watched>(impl_->io);
  error_code error;
  entry->flags = ::fcntl(fd, F_GETFL);
  entry->descriptor.assign(fd, error);
  if (error) entry->pollable = false;
  impl_->watched[fd] = std::move(entry);
}

void ApiStream::unwatch(int fd) {
  const auto found = impl_->watched.find(fd);
  if (found == impl_->watched.end()) return;
  if (found->second->pollable) {
    // The aborted handler still holds the entry's address: let it run before the entry goes.
    found->second->descriptor.release();
    if (impl_->io.stopped()) impl_->io.restart();
    impl_->io.poll();
  }
  impl_->watched.erase(found);
}

bool ApiStream::ready() {
  Impl& my = *impl_;
  if (my.consumed) {
    my.buffer.consume(my.buffer.size());
    my.consumed = false;
  }
  my.read();
  if (!my.frame) {
    if (my.io.stopped()) my.io.restart();
    my.io.poll();
  }
  return my.frame;
}

ApiStream::Event ApiStream::wait(std::optional<Monotonic> deadline) {
  Impl& my = *impl_;
  if (my.consumed) {
    my.buffer.consume(my.buffer.size());
    my.consumed = false;
  }
  my.arm();
  while (true) {
    my.read();
    if (my.frame) {
      my.frame = false;
      my.consumed = true;
      return {my.socket.got_text() ? What::text : What::binary, -1};
    }
    if (my.broken) return {What::closed, -1};
    for (auto& [fd, entry] : my.watched) {
      if (!entry->ready) continue;
      entry->ready = false;
      return {What::input, fd};
    }
    my.run(deadline);
    if (!my.frame && deadline && std::chrono::steady_clock::now() >= *deadline) {
      return {What::timeout, -1};
    }
  }
}

std::string_view ApiStream::data() const {
  const auto bytes = impl_->buffer.data();
  return {static_cast<const char*>(bytes.data()), bytes.size()};
}

void ApiStream::send_text(std::string text) {
  impl_->queued += text.size();
  impl_->queue.push_back({true, std::move(text)});
  impl_->write();
}

void ApiStream::send_binary(std::string bytes) {
  impl_->queued += bytes.size();
  impl_->queue.push_back({false, std::move(bytes)});
  impl_->write();
}

std::size_t ApiStream::queued() const {
  return impl_->queued;
}

bool ApiStream::send_below(std::size_t bytes, std::chrono::milliseconds silence) {
  Impl& my = *impl_;
  std::size_t before = my.queued;
  auto until = std::chrono::steady_clock::now() + silence;
  while (my.queued >= bytes) {
    if (ready() || my.broken) return false;
    if (my.queued < bytes) break;
    my.run(until);
    if (my.queued != before) {
      before = my.queued;
      until = std::chrono::steady_clock::now() + silence;
    } else if (std::chrono::steady_clock::now() >= until) {
      return false;
    }
  }
  return true;
}

// ---- ApiClient

ApiClient::ApiClient(fs::path socket, std::string cluster)
    : socket_(std::move(socket)), cluster_(std::move(cluster)) {}

ApiClient ApiClient::stopped_by(std::stop_token stop) const {
  ApiClient client = *this;
  client.stop_ = std::move(stop);
  return client;
}

bool ApiClient::answers() const {
  return static_cast<bool>(dial_unix(socket_));
}

nlohmann::json ApiClient::request(int verb, const std::string& target, const std::string& body,
                                  std::chrono::milliseconds limit) const {
  Exchange exchange(socket_, cluster_, {limit, stop_});
  auto request = make_request(static_cast<http::verb>(verb), target, body);
  exchange.run_or_throw(
      [&](auto done) { http::async_write(exchange.socket(), request, std::move(done)); });
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kAnswerLimit);
  const error_code failed = exchange.run(
      [&](auto done) { http::async_read(exchange.socket(), buffer, parser, std::move(done)); });
  if (failed == http::error::body_limit) {
    throw Error(ErrorCode::exhausted, "what the head of cluster " + cluster_ + " answers is over " +
                                          std::to_string(kAnswerLimit >> 20) + " MiB");
  }
  if (failed) throw unreachable(cluster_, "broke the connection (" + failed.message() + ")");
  const auto& response = parser.get();
  if (response.result_int() >= 400) throw_refusal(response.result_int(), response.body());
  return parse_json(response.body(), "the head's answer", kAnswerLimit);
}

nlohmann::json ApiClient::get(const std::string& target, std::chrono::milliseconds limit) const {
  return request(static_cast<int>(http::verb::get), target, {}, limit);
}

nlohmann::json ApiClient::post(const std::string& target, const nlohmann::json& body,
                               std::chrono::milliseconds limit) const {
  return request(static_cast<int>(http::verb::post), target, dump(body), limit);
}

nlohmann::json ApiClient::remove(const std::string& target, std::chrono::milliseconds limit) const {
  return request(static_cast<int>(http::verb::delete_), target, {}, limit);
}

ApiStream ApiClient::open(const std::string& target, std::chrono::milliseconds limit) const {
  auto impl = std::make_unique<ApiStream::Impl>(socket_, cluster_);
  impl->socket.read_message_max(kFrameLimit);
  websocket::response_type response;
  Outcome outcome;
  impl->socket.async_handshake(response, "dtrain", target, [&outcome](error_code error) {
    outcome.done = true;
    outcome.error = error;
  });
  const Patience patience{limit, stop_};
  if (!run_until(impl->io, outcome.done, patience)) {
    impl.reset();  // runs the aborted handler while `outcome` lives
    throw given_up(cluster_, patience);
  }
  if (outcome.error) {
    // Only then is there an answer: Beast puts 500 into `response` before anything has come.
    if (outcome.error == websocket::error::upgrade_declined) {
      throw_refusal(response.result_int(), response.body());
    }
    throw unreachable(cluster_, "broke the connection (" + outcome.error.message() + ")");
  }
  return ApiStream(std::move(impl));
}

std::string percent_encode(std::string_view text, bool keep_slashes) {
  static constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~").find(c) != std::string_view::npos ||
                       (keep_slashes && c == '/');
    if (plain) {
      out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += '%';
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

}  // namespace dtrain::wire
