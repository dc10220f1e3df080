#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/link/content_exchange.hpp"
#include "agent/link/idle_thread.hpp"
#include "agent/node/door.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/wire/node.hpp"

// What many nodes want alike they have from those that have it by then: this node's part in it, as
// one that gives (Relay), and as one that takes.
namespace dtrain::node {

// Gives from a port of its own, by a thread in idle priority, as the head does. Any thread.
class Relay {
 public:
  Relay(paths::NodeRoot root, ClusterId cluster);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Tells the head at `path` that it is here, and gives it to those that the head sends, until the
  // head wants no more of it. `offer` says what it is, `source` is made on the relay's thread; what
  // that throws is the end of it, since nobody depends on this node.
  void offer(std::string path, wire::ContentOffer offer, std::function<link::Source()> source);
  // The same of content that the root's store has.
  void offer(wire::ContentOffer offer, const JobContent& content);

 private:
  // What is given to those with the token.
  struct Gift {
    link::Source source;
    std::set<NodeId> forbidden;
    std::vector<std::pair<NodeId, std::weak_ptr<wire::FrameStream>>> readers;
    void end_readers(const std::optional<NodeId>& of) const;  // absent: all
  };
  boost::asio::awaitable<void> hold(std::string path, wire::ContentOffer offer,
                                    std::function<link::Source()> source);
  boost::asio::awaitable<void> serve(wire::AcceptedPeer peer);

  const paths::NodeRoot root_;
  const ClusterId cluster_;
  link::IdleThread thread_;  // outlives its sockets
  // The thread's.
  std::map<std::string, std::shared_ptr<Gift>> gifts_;  // by token
  std::shared_ptr<Door> door_;                          // while there are any
};

// Has `bring` take all that is missing by a connection to the node that the head has named. Returns
// why it was not had from there; throws what `check` does, and Error(exhausted) for a full disk. A
// node that gives next to nothing is left (link::WatchedStream).
using Bring = std::function<boost::asio::awaitable<void>(wire::FrameStreamPtr)>;
boost::asio::awaitable<std::optional<std::string>> bring_from(paths::NodeRoot root,
                                                              ClusterId cluster,
                                                              wire::ContentElsewhere giver,
                                                              std::function<void()> check,
                                                              Bring bring);
// Tells the head that all of it is here. True when others wait for it; throws nothing of the
// head's.
boost::asio::awaitable<bool> is_wanted(wire::FrameStreamPtr head);

}  // namespace dtrain::node
