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
    // So long one that has it still counts as a reader, if it does not give before: it is about to.
    std::chrono::milliseconds about_to_give{2000};
    std::chrono::milliseconds kept{10000};  // a giver that nobody asks any more
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

  // The node wants it, of whomever. `decided` is called once, maybe at once.
  Number want(const std::string& what, const NodeId& node, Decided decided);
  // It was not had from the node that it was sent to, which is not asked any more once two nodes
  // have said so; it is the head that will give it.
  void missed(Number wish, Time now, Decided decided);
  // It takes next to nothing: it keeps nobody waiting any more.
  void slow(Number wish, Time now);
  // It has it whole. True when others wait, so that it should give.
  bool whole(Number wish, Time now);
  // It is gone.
  void over(Number wish, Time now);

  // The node has it, and gives it until `dismiss` is called, or it withdraws. Dismissed at once
  // where nobody waits.
  Number offer(const std::string& what, const Giver& giver, Time now,
               std::function<void()> dismiss);
  void withdraw(Number offer);

  // What time brings; wanted again at next_look(), if there is one.
  void look(Time now);
  std::optional<Time> next_look() const;
  void clear();  // calls nobody

 private:
  struct Wish {
    std::string what;
    NodeId node;
    Decided decided;       // empty: it was called
    Number giver = 0;      // an offer's number; 0: the head
    bool counted = false;  // as its reader
    bool leaving = false;  // it has it, and counts for a moment
  };
  struct Offer {
    std::string what;
    Giver giver;
    std::function<void()> dismiss;
    int readers = 0;
    std::set<NodeId> missed;     // who did not get it there
    std::optional<Time> unused;  // since when it has no reader
  };
  struct Content {
    std::set<Number> waiting;   // wishes that anybody may meet
    std::set<Number> for_head;  // that only the head may
    int readers = 0;            // the head's
    std::set<Number> offers;
    std::map<NodeId, Number> leaving;  // wishes
    bool waits() const { return !waiting.empty() || !for_head.empty(); }
  };

  void settle(const std::string& what);
  Number least_busy(const Content& content, const NodeId& reader) const;
  void begin(Content& content, Number number, Number giver);
  void uncount(Wish& wish, Time now);
  void leave(Number wish, Time now);
  void dismiss(Number offer);
  void set_unused(Number number, Offer& offer, std::optional<Time> since);
  void tidy(const std::string& what);

  Limits limits_;
  std::map<std::string, Content> contents_;
  std::map<Number, Wish> wishes_;
  std::map<Number, Offer> offers_;
  std::set<std::pair<Time, Number>> unused_;     // offers
  std::deque<std::pair<Time, Number>> leaving_;  // since when which wish does, in order
  Number last_ = 0;
};

}  // namespace dtrain::head
