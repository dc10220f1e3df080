#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "agent/link/content_exchange.hpp"
#include "agent/link/idle_thread.hpp"
#include "agent/node/door.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/wire/node.hpp"

// What many nodes want alike is had from those that have it by then: this node's part in it, as one
// that gives (Relay) and as one that takes (ask_for).
namespace dtrain::node {

// What is given: the answer to a hello, and what may be asked for then.
struct Gift {
  wire::ContentMessage answer;  // ContentGrant or ContentFiles
  link::Source source;
};

// Gives from a port of its own, by a thread in idle priority, as the head does. Any thread.
class Relay {
 public:
  Relay(paths::NodeRoot root, ClusterId cluster);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Tells the head at `path` of what is here, and gives it to those that the head sends, until the
  // head wants no more of it. `offer` says what it is; `make` is called on the relay's thread, and
  // what it throws is the end of it: nobody depends on this node.
  void offer(std::string path, wire::ContentOffer offer, std::function<Gift()> make);

 private:
  boost::asio::awaitable<void> hold(std::string path, wire::ContentOffer offer,
                                    std::function<Gift()> make);
  boost::asio::awaitable<void> serve(wire::AcceptedPeer peer);

  const paths::NodeRoot root_;
  const ClusterId cluster_;
  link::IdleThread thread_;  // outlives its sockets
  // The thread's.
  std::map<std::string, std::shared_ptr<Gift>> gifts_;  // by token
  std::shared_ptr<Door> door_;                          // while there are any
};

// Says `hello` to the head, which was dialled, and has `take` do with the answer. Where the head
// names another node it is that node's answer, over a connection to it; after trouble with that
// node (but what `check` throws, and a full disk) the head's own. True when others may want it of
// this node now.
using Take =
    std::function<boost::asio::awaitable<void>(wire::FrameStreamPtr, wire::ContentMessage)>;
boost::asio::awaitable<bool> ask_for(paths::NodeRoot root, ClusterId cluster,
                                     wire::FrameStreamPtr head, wire::ContentMessage hello,
                                     std::function<void()> check, Take take);

}  // namespace dtrain::node
