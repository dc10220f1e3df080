#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "agent/node/relay.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/wire/node.hpp"

// What the head wants of this machine, done by a process of its own (agent/session/prepare.hpp):
// what it says is passed on, and files that other machines wait for are given to them. All calls on
// the executor's thread.
namespace dtrain::node {

class Preparing {
 public:
  using Say = std::function<void(const wire::NodeMessage&)>;
  // `program` is this one. `say` passes a message on to the head; it may be dropped while there is
  // none.
  Preparing(const boost::asio::any_io_executor& executor, paths::NodeRoot root, std::string program,
            Relay& relay, Say say);
  // Ends the process; a list of setup commands that runs goes on.
  ~Preparing();
  Preparing(const Preparing&) = delete;
  Preparing& operator=(const Preparing&) = delete;

  // While it is at that, says again how far it is; while at another, that is given up.
  void begin(const wire::PrepareNode& wanted);
  std::string prepared() const;         // the key of what was done last; empty: nothing
  std::set<std::string> trees() const;  // in use

 private:
  void start();
  void read();
  void heard(const std::string& line);
  void give_on();
  void over();
  void end() const;

  paths::NodeRoot root_;
  std::string program_;
  Relay& relay_;
  Say say_;
  std::optional<wire::PrepareNode> now_;
  std::optional<wire::PrepareNode> next_;
  bool given_up_ = false;  // now_, for next_
  wire::Preparing last_;   // that was said
  pid_t pid_ = -1;
  boost::asio::posix::stream_descriptor out_;
  std::string read_;
};

}  // namespace dtrain::node
