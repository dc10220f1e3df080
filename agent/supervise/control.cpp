#include "agent/supervise/control.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>

#include "agent/supervise/listener.hpp"
#include "agent/supervise/outbox.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/log.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::supervise {
namespace {

namespace asio = boost::asio;
using Descriptor = asio::posix::stream_descriptor;

constexpr std::size_t kCommandMax = std::size_t{1} << 20;   // bytes of a line from the client
constexpr std::size_t kSendAhead = std::size_t{256} << 10;  // bytes made ready at once

}  // namespace

struct Control::Session {
  Session(asio::io_context& io, int fd) : socket(io, fd) {}

  Descriptor socket;
  std::string in;
  std::string out;
  std::size_t out_sent = 0;
  std::uint64_t last_put = 0;  // number of the last event in `out`
  bool writing = false;        // a wait for room is pending
  bool closed = false;
};

struct Control::Impl : std::enable_shared_from_this<Control::Impl> {
  Impl(asio::io_context& context, const fs::path& socket_path, std::string hello_line,
       const Outbox& events, Hooks callbacks)
      : io(context),
        hello(std::move(hello_line)),
        outbox(events),
        hooks(std::move(callbacks)),
        listener(context, socket_path, [this] { accept(); }) {}

  asio::io_context& io;
  std::string hello;
  const Outbox& outbox;
  Hooks hooks;
  Listener listener;
  std::shared_ptr<Session> session;

  void accept() {
    while (auto fd = listener.accept()) {
      if (session) close(session);
      const auto made = std::make_shared<Session>(io, fd->release());
      session = made;
      made->out = hello + "\n";
      log::info("the node agent is here");
      hooks.changed();
      wait_read(made);
      send(made);
    }
  }

  void close(const std::shared_ptr<Session>& which) {
    if (which->closed) return;
    which->closed = true;
    which->socket.close();
    if (session == which) {
      session.reset();
      log::info("the node agent is gone");
      hooks.changed();
    }
  }

  void wait_read(const std::shared_ptr<Session>& which) {
    which->socket.async_wait(Descriptor::wait_read,
                             [self = shared_from_this(), which](boost::system::error_code failed) {
                               if (failed || which->closed) return;
                               self->receive(which);
                               if (!which->closed) self->wait_read(which);
                             });
  }

  void receive(const std::shared_ptr<Session>& which) {
    std::array<char, 65536> buffer;
    const ssize_t got =
        ::recv(which->socket.native_handle(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      close(which);
      return;
    }
    which->in.append(buffer.data(), static_cast<std::size_t>(got));
    try {
      take_lines(which);
    } catch (const Error& error) {
      log::warn("a wrong command ends the connection", {{"error", error.what()}});
      close(which);
    }
  }

  void take_lines(const std::shared_ptr<Session>& which) {
    std::size_t begin = 0;
    // A command may close the session.
    while (!which->closed) {
      const std::size_t end = which->in.find('\n', begin);
      if (end == std::string::npos) break;
      const std::string_view line = std::string_view(which->in).substr(begin, end - begin);
      auto command =
          wire::attempt_command_from_json(wire::parse_json(line, "the command", kCommandMax));
      begin = end + 1;
      hooks.command(std::move(command));
    }
    which->in.erase(0, begin);
    if (which->in.size() > kCommandMax) throw Error(ErrorCode::invalid, "a line is too long");
  }

  void send(const std::shared_ptr<Session>& which) {
    while (!which->closed && !which->writing) {
      if (which->out_sent == which->out.size()) refill(*which);
      if (which->out.empty()) return;
      failpoint("event.send.before");
      const ssize_t sent =
          ::send(which->socket.native_handle(), which->out.data() + which->out_sent,
                 which->out.size() - which->out_sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent >= 0) {
        which->out_sent += static_cast<std::size_t>(sent);
        failpoint("event.send.after");
      } else if (errno == EAGAIN) {
        wait_write(which);
      } else if (errno != EINTR) {
        return close(which);  // `which` may be `session` itself, which is let go of there
      }
    }
  }

  void refill(Session& which) const {
    which.out.clear();
    which.out_sent = 0;
    const Outbox::Event* event = nullptr;
    while (which.out.size() < kSendAhead && (event = outbox.after(which.last_put)) != nullptr) {
      which.out += event->line;
      which.last_put = event->seq;
    }
  }

  void wait_write(const std::shared_ptr<Session>& which) {
    which->writing = true;
    which->socket.async_wait(Descriptor::wait_write,
                             [self = shared_from_this(), which](boost::system::error_code failed) {
                               which->writing = false;
                               if (!failed) self->send(which);
                             });
  }
};

Control::Control(asio::io_context& io, const fs::path& path, std::string hello,
                 const Outbox& outbox, Hooks hooks)
    : impl_(std::make_shared<Impl>(io, path, std::move(hello), outbox, std::move(hooks))) {}

Control::~Control() {
  impl_->hooks.changed = [] {};
  impl_->listener.close();
  if (impl_->session) impl_->close(impl_->session);
}

void Control::kick() {
  if (impl_->session) impl_->send(impl_->session);
}

bool Control::connected() const {
  return impl_->session != nullptr;
}

}  // namespace dtrain::supervise
