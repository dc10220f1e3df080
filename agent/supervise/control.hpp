#pragma once

#include <functional>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>

#include "launcher/core/files.hpp"
#include "launcher/wire/attempt.hpp"

namespace dtrain::supervise {

class Outbox;

// The supervisor's socket, made again where somebody takes it away. One client at a time, a new one
// takes the place of the one before: it gets the hello line, every event that is not acknowledged,
// then new ones as they come. What a client sends wrong ends that connection and nothing more.
class Control {
 public:
  struct Hooks {
    // May throw Error: the client has sent something impossible.
    std::function<void(wire::AttemptCommand)> command;
    // A client has come or gone.
    std::function<void()> changed;
  };

  Control(boost::asio::io_context& io, const fs::path& path, std::string hello,
          const Outbox& outbox, Hooks hooks);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // The outbox has more to send.
  void kick();
  bool connected() const;

 private:
  struct Session;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace dtrain::supervise
