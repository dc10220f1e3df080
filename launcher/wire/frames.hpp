#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "launcher/wire/identity.hpp"

// WebSocket connections as streams of frames, over TLS between head and nodes, over a unix socket
// between CLI and head. Beast stays behind this header.
namespace dtrain::wire {

namespace asio = boost::asio;

struct Frame {
  bool text = true;
  std::string bytes;
};

// One open connection. All calls on the thread of its executor; shared, because what reads it and
// what writes it end at different times.
class FrameStream {
 public:
  virtual ~FrameStream() = default;

  // The next frame. Error(unreachable) once the connection is over, whatever the cause. One reader.
  virtual asio::awaitable<Frame> read() = 0;
  // Queues a frame; frames go out in order. After the end it does nothing.
  virtual void send(Frame frame) = 0;
  void send_text(std::string text) { send({true, std::move(text)}); }
  // Waits until less than `bytes` are queued, or the connection is over.
  virtual asio::awaitable<void> queue_below(std::size_t bytes) = 0;
  // Sends what is queued and then the closing handshake; returns at once.
  virtual void close() = 0;
  // Drops the connection.
  virtual void abort() = 0;
  virtual bool is_open() const = 0;
};

using FrameStreamPtr = std::shared_ptr<FrameStream>;

inline constexpr std::size_t kFrameLimit = std::size_t{16} << 20;  // of a frame that is read

// Dials `address` (a numeric one: the static agent resolves no names), proves who we are, checks
// that the other end is `expected` of our cluster, and opens the WebSocket at `path`.
// Error(unreachable), Error(denied) or Error(timeout), with address and port.
asio::awaitable<FrameStreamPtr> dial_tls(std::string address, std::uint16_t port,
                                         std::shared_ptr<asio::ssl::context> context,
                                         PeerName::Role expected_role, ClusterId cluster,
                                         std::string path, std::chrono::milliseconds deadline);

struct AcceptedPeer {
  FrameStreamPtr stream;
  PeerName name;
  std::string path;
};
// The other side of dial_tls. A peer without a certificate of the CA is hung up on by the TLS
// handshake, before a byte of ours is read. Throws Error as dial_tls.
asio::awaitable<AcceptedPeer> accept_tls(asio::ip::tcp::socket socket,
                                         std::shared_ptr<asio::ssl::context> context,
                                         std::chrono::milliseconds deadline);

// Answers a WebSocket upgrade whose HTTP request, head and all, has been read as `request`.
asio::awaitable<FrameStreamPtr> accept_unix(asio::local::stream_protocol::socket socket,
                                            std::string request);

}  // namespace dtrain::wire
