#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "launcher/wire/identity.hpp"
#include "launcher/wire/limits.hpp"
#include "launcher/wire/requests.hpp"

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
  // Our own end's address as a number; empty for a unix socket.
  virtual std::string local_address() const = 0;
  // The other end is on this machine: it came by loopback, or by an address of ours.
  virtual bool peer_is_here() const = 0;
};

using FrameStreamPtr = std::shared_ptr<FrameStream>;

// Dials `address` (a numeric one: the static agent resolves no names), proves who we are, checks
// that the other end is `expected` of our cluster, and opens the WebSocket at `path`.
// Error(unreachable), Error(denied) or Error(timeout), with address and port. `patient`: a peer
// whose machine is there may leave what we send unread for as long as it likes.
asio::awaitable<FrameStreamPtr> dial_tls(std::string address, std::uint16_t port,
                                         std::shared_ptr<asio::ssl::context> context,
                                         PeerName::Role expected_role, ClusterId cluster,
                                         std::string path, std::chrono::milliseconds deadline,
                                         bool patient = false);

struct AcceptedPeer {
  FrameStreamPtr stream;
  PeerName name;
  std::string path;
};
// The other side of dial_tls. Who shows no certificate of the CA is hung up on by the TLS
// handshake, who shows none of a node right after it, before a byte of a request is read. Throws
// Error as dial_tls. `patient`: as there.
asio::awaitable<AcceptedPeer> accept_tls(asio::ip::tcp::socket socket,
                                         std::shared_ptr<asio::ssl::context> context,
                                         std::chrono::milliseconds deadline, bool patient = false);

// A peer that has proven who it is, and of whose request the head has been read, and nothing behind
// it. One of the last three is called, once; a caller that is let go of is hung up on.
class Caller {
 public:
  virtual ~Caller() = default;
  virtual const PeerName& name() const = 0;
  virtual const std::string& fingerprint() const = 0;  // of its certificate
  virtual WallTime certified() const = 0;              // when that was made
  virtual const std::string& method() const = 0;
  virtual const std::string& path() const = 0;
  virtual const std::string& where() const = 0;  // its address

  // The request's body, within what is left of the greeting's deadline. Error(exhausted), before
  // a byte of it is read, when it is longer than `limit` or does not say how long it is.
  virtual asio::awaitable<std::string> body(std::size_t limit) = 0;

  // Gives it the WebSocket, on this thread. Throws Error as accept_tls. `patient`: as with
  // dial_tls.
  virtual asio::awaitable<FrameStreamPtr> accept(bool patient = false) = 0;
  // The same on another thread's executor, where the connection's TLS is done from then on: what
  // carries gigabytes keeps nobody else waiting. `then` is called there, if all goes well.
  // `patient`: as with dial_tls.
  virtual void accept_on(asio::any_io_executor there, std::function<void(FrameStreamPtr)> then,
                         bool patient = false) = 0;
  // Plain HTTP in its place, there too; then the connection closes. What of the request was not
  // read is not. `done` is called on some thread once it is over, whatever came of it.
  virtual void answer_on(asio::any_io_executor there, HttpAnswer answer,
                         std::function<void()> done) = 0;
};
using CallerPtr = std::shared_ptr<Caller>;

// Whose certificates count at a port.
enum class Callers : std::uint8_t { nodes, nodes_and_joining };

// The first half of accept_tls.
asio::awaitable<CallerPtr> greet_tls(asio::ip::tcp::socket socket,
                                     std::shared_ptr<asio::ssl::context> context,
                                     std::chrono::milliseconds deadline, Callers callers);

// Answers a WebSocket upgrade whose HTTP request, head and all, has been read as `request`.
asio::awaitable<FrameStreamPtr> accept_unix(asio::local::stream_protocol::socket socket,
                                            std::string request);

}  // namespace dtrain::wire
