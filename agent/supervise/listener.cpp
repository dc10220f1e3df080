#include "agent/supervise/listener.hpp"

#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <exception>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/unix_socket.hpp"

namespace dtrain::supervise {
namespace {

namespace asio = boost::asio;
using Descriptor = asio::posix::stream_descriptor;

constexpr std::chrono::seconds kLookEvery{1};
constexpr std::chrono::milliseconds kTakeAgain{100};  // where nobody could be taken

}  // namespace

struct Listener::Impl : std::enable_shared_from_this<Listener::Impl> {
  Impl(asio::io_context& io, fs::path at, std::function<void()> callback)
      : path(std::move(at)), come(std::move(callback)), socket(io), timer(io), moment(io) {
    open();
  }

  fs::path path;
  std::function<void()> come;
  Descriptor socket;
  asio::steady_timer timer;
  asio::steady_timer moment;
  FileOf made;         // the path's, as it was bound
  int generation = 0;  // of the socket and its pauses; who waited before is passed over
  bool paused = false;
  bool told = false;  // that it cannot be made again
  bool closed = false;
  bool refused = false;       // by the system: who came last could not be taken
  bool refusal_told = false;  // that this was so once

  void open() {
    UniqueFd fd = listen_unix(path);
    made = FileOf(path);
    socket.close();
    socket.assign(fd.release());
    ++generation;
  }

  void wait() {
    socket.async_wait(Descriptor::wait_read, [self = shared_from_this(),
                                              mine = generation](boost::system::error_code failed) {
      if (failed || self->closed || mine != self->generation) return;
      self->come();
      if (mine == self->generation) self->wait_on();
    });
  }

  // A listener that nobody can be taken from stays readable: it is let alone for a moment.
  void wait_on() {
    if (!refused) return wait();
    moment.expires_after(kTakeAgain);
    moment.async_wait([self = shared_from_this(), mine = generation](boost::system::error_code) {
      if (!self->closed && mine == self->generation) self->wait();
    });
  }

  std::optional<UniqueFd> accept() {
    refused = false;
    try {
      return accept_own(socket.native_handle());
    } catch (const Error& error) {
      refused = true;
      if (!std::exchange(refusal_told, true)) {
        log::warn("who comes to a socket waits",
                  {{"why", error.what()}, {"socket", path.string()}});
      }
      return std::nullopt;
    }
  }

  void pause(bool on) {
    if (closed || std::exchange(paused, on) == on) return;
    ++generation;
    if (paused) {
      socket.cancel();
    } else {
      wait();
    }
  }

  void look_again() {
    timer.expires_after(kLookEvery);
    timer.async_wait([self = shared_from_this()](boost::system::error_code failed) {
      if (failed || self->closed) return;
      if (!self->paused && self->made.is_gone(self->path)) self->make_again();
      self->look_again();
    });
  }

  void make_again() {
    try {
      make_private_subfolder(path.parent_path());
      come();  // who waits at the old one
      if (paused) return;
      open();
      wait();
      told = false;
      log::warn("a socket was taken away; it is made again", {{"socket", path.string()}});
    } catch (const std::exception& error) {
      if (!std::exchange(told, true)) {
        log::error("a socket was taken away and cannot be made again", {{"why", error.what()}});
      }
    }
  }
};

Listener::Listener(asio::io_context& io, const fs::path& path, std::function<void()> come)
    : impl_(std::make_shared<Impl>(io, path, std::move(come))) {
  impl_->wait();
  impl_->look_again();
}

Listener::~Listener() {
  close();
}

std::optional<UniqueFd> Listener::accept() {
  return impl_->accept();
}

void Listener::pause(bool paused) {
  impl_->pause(paused);
}

void Listener::close() {
  if (std::exchange(impl_->closed, true)) return;
  impl_->timer.cancel();
  impl_->moment.cancel();
  impl_->socket.close();
  ::unlink(impl_->path.c_str());
}

}  // namespace dtrain::supervise
