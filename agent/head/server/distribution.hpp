#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "launcher/core/ids.hpp"

// Who gives what many nodes want alike: the head to a few of them at a time, and each that has it
// whole to as many more. So those that give grow with those that have it: where the head alone
// would send N copies, the last node has it after the time of about
// readers * log(N) / log(readers + 1) of them. Nobody has a place in the tree: it grows from who
// asks and who is quick, as TakTuk's (Claudel, Huard, Richard: TakTuk, adaptive deployment of
// remote executions, HPDC 2009).
namespace dtrain::head {

// Pure bookkeeping: no socket, no clock; one thread's. Calls take time by logarithms, and by the
// number of givers of one content.
class Distribution {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Number = std::uint64_t;
  struct Limits {
    int readers = 2;  // of one giver at a time, the head among them
    // So long a reader counts, and as much longer as all of it takes at that speed: slower ones
    // keep nobody waiting.
    std::chrono::milliseconds counted{20000};
    std::uint64_t slow = std::uint64_t{2} << 20;  // bytes a second
    // And so long after its end, if it does not give before: one that has it is about to.
    std::chrono::milliseconds about_to_give{300};
    // So long a node gives what nobody asks for; and of so many of them it is wanted.
    std::chrono::milliseconds kept{10000};
    std::size_t idle = 32;
  };
  // A node that gives, and where.
  struct Giver {
    NodeId node;
    std::string address;
    int port = 0;
    std::string token;
  };
  // Whose turn it is to give it: absent, the head's. May not call back from within.
  using Decided = std::function<void(const std::optional<Giver>&)>;

  Distribution() = default;
  explicit Distribution(const Limits& limits) : limits_(limits) {}

  // The node wants it, all its `bytes`, of whomever. `decided` is called once, maybe at once.
  Number want(const std::string& what, std::uint64_t bytes, const NodeId& node, Time now,
              Decided decided);
  // It was not had from the node that it was sent to, which is not asked again by anybody; it is
  // the head that will give it.
  void missed(Number wish, Time now, Decided decided);
  // It has it, or does not want it any more.
  void over(Number wish, Time now);

  // The node has it, and gives it until `dismiss` is called, or it withdraws.
  Number offer(const std::string& what, const Giver& giver, Time now,
               std::function<void()> dismiss);
  void withdraw(Number offer);

  // What time brings; wanted again at next_look(), if there is one.
  void look(Time now);
  std::optional<Time> next_look() const;

 private:
  struct Wish {
    std::string what;
    std::uint64_t bytes = 0;
    NodeId node;
    Decided decided;              // empty: it was called
    Number giver = 0;             // an offer's number; 0: the head
    std::optional<Time> counted;  // as its reader, at most until then
  };
  struct Offer {
    Giver giver;
    std::function<void()> dismiss;
    int readers = 0;
    Time last;  // that somebody was sent to it, or was through with it
  };
  struct Content {
    std::set<Number> waiting;   // wishes that anybody may meet
    std::set<Number> for_head;  // that only the head may
    int readers = 0;            // the head's
    std::map<Number, Offer> offers;
    std::map<NodeId, Number> leaving;  // wishes that are over, and count
    bool is_idle() const { return waiting.empty() && for_head.empty(); }
  };

  void settle(const std::string& what, Time now);
  Offer* least_busy(Content& content, const NodeId& reader, Number& number);
  void begin(Content& content, Number number, Number giver, Time now);
  void uncount(Number number, Wish& wish, Time now);
  void leave(Number number, Time now);
  void dismiss(Content& content, std::map<Number, Offer>::iterator offer);
  void tidy(const std::string& what);

  Limits limits_;
  std::map<std::string, Content> contents_;
  std::map<Number, Wish> wishes_;
  std::map<Number, std::string> offered_;        // what each offer is of
  std::set<std::pair<Time, Number>> counting_;   // until when which wish counts
  std::deque<std::pair<Time, Number>> leaving_;  // since when which wish is over, in order
  Number last_ = 0;
};

}  // namespace dtrain::head
