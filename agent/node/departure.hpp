#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "launcher/core/ids.hpp"
#include "launcher/wire/attempt.hpp"
#include "launcher/wire/node.hpp"

// How a node leaves whose container or machine ends: its attempts are stopped, each by its job's
// own grace, the head hears why and when all is over, and the wait for either has an end. All on
// the executor's thread.
namespace dtrain::node {

class Departure {
 public:
  struct Hooks {
    std::function<void(const wire::StopRanks&)> stop;  // all attempts of this node
    // To the head, if it is there and knows the message.
    std::function<void(const wire::Leaving&)> tell;
    std::function<bool()> connected;
    std::function<bool()> running;     // some attempt has processes here, or is about to
    std::function<bool()> unfinished;  // of some attempt the head must still hear
    std::function<void()> redial;      // the head is dialled at once, if it is not there
    std::function<void()> give_up;     // the wait is over, and the head does not know all
  };
  Departure(const boost::asio::any_io_executor& executor, NodeId node, Hooks hooks);

  // "its container was told to end (SIGTERM)". `limit`: for all of it. Ranks get at most kRanks of
  // it, the head is waited for until kAll of it has passed: whoever watches this process still has
  // to end what is left. Once more it changes nothing, unless that is to be over sooner.
  void begin(const std::string& reason, std::chrono::milliseconds limit);
  // What still runs is killed, and the head is waited for kHurried at most.
  void hurry();
  bool under_way() const { return !reason_.empty(); }
  const std::string& reason() const { return reason_; }  // empty: not under way
  // "node-1 leaves the cluster: REASON", of one that is under way.
  std::string what() const;

  // The head is there (again), or gone; an attempt is over.
  void look();

  static constexpr double kRanks = 0.75;
  static constexpr double kAll = 0.9;
  static constexpr std::chrono::seconds kHurried{5};
  // For a head that does not answer, where it has nothing more to hear but that all is over.
  static constexpr std::chrono::seconds kNoHead{5};

 private:
  using Clock = std::chrono::steady_clock;
  void arm();

  NodeId node_;
  Hooks hooks_;
  boost::asio::steady_timer timer_;
  std::string reason_;
  bool runs_ = false;  // as last seen without the head
  bool told_ = false;  // over this connection that it leaves
  bool over_ = false;  // and that all is over
  Clock::time_point until_;
  Clock::time_point no_head_until_ = Clock::time_point::max();
};

}  // namespace dtrain::node
