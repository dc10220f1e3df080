#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/clock.hpp"
#include "launcher/wire/attempt.hpp"

namespace dtrain::supervise {

// The events of an attempt that the head has not acknowledged, in order, each as the line that is
// sent. Numbers go up. Of progress reports and heartbeats at most one per rank is on its
// way, or of heartbeats one for all ranks; while it is, and for a moment after, only the newest is
// kept. No I/O.
class Outbox {
 public:
  struct Event {
    std::uint64_t seq = 0;
    std::string line;      // JSON and newline
    bool passing = false;  // progress or heartbeat: not worth keeping after the end
  };

  // Returns the event's number.
  std::uint64_t push(const wire::AttemptEventBody& body);

  // A progress report or heartbeat that passed parse_report. Progress goes out by send_due(), of
  // rank 0, which people see, each kProgressEvery at most, of others and heartbeats once a second.
  void push_passing(int rank, nlohmann::json body, Monotonic now);
  // A heartbeat that goes with those of the other ranks (AttemptSpec's beats): of each rank the
  // newest is kept.
  void push_beat(wire::RankBeat beat);
  // What waits and may go is put in line; of what came by push_beat() as one event, if none is on
  // its way and the last was a second ago. Returns when to call this again, if time alone is
  // missing; to be called after push_passing(), push_beat(), acknowledge() and heard() too.
  std::optional<Monotonic> send_due(Monotonic now);
  // The rank has ended: what waits for its turn is put in line now, before RankExited.
  void flush_passing(int rank);

  // Forgets all up to `seq`. Throws Error(invalid) for a number that was never given.
  void acknowledge(std::uint64_t seq);

  // Forgets this one alone: the head has it, whatever waits before it.
  void heard(std::uint64_t seq);

  // The first event after `seq`; null when there is none.
  const Event* after(std::uint64_t seq) const;
  bool empty() const noexcept { return events_.empty(); }
  std::uint64_t last_seq() const noexcept { return last_seq_; }

  // More waits than the head has kept up with: ranks are not to be read until `relaxed`.
  bool full() const noexcept { return events_.size() > kEventsMax || bytes_ > kBytesMax; }
  bool relaxed() const noexcept {
    return events_.size() <= kEventsMax / 2 && bytes_ <= kBytesMax / 2;
  }

  // Lines without newline of all that is kept, but what passes; and `last` as the next in line.
  std::vector<std::string> lasting(const wire::AttemptEventBody& last) const;

  static constexpr std::chrono::milliseconds kProgressEvery{200};
  static constexpr std::size_t kEventsMax = 4096;
  static constexpr std::size_t kBytesMax = std::size_t{16} << 20;

 private:
  struct Passing {
    std::uint64_t on_its_way = 0;  // 0: none
    nlohmann::json waiting;        // progress; null: none
    std::optional<Monotonic> sent;
    Monotonic last_heartbeat{};
  };
  std::uint64_t append(const wire::AttemptEventBody& body, bool passing);

  std::deque<Event> events_;
  std::size_t bytes_ = 0;
  std::uint64_t last_seq_ = 0;
  std::map<int, Passing> passing_;        // by rank
  std::map<int, wire::RankBeat> beats_;   // that wait, by rank
  std::uint64_t beats_on_their_way_ = 0;  // 0: none
  std::optional<Monotonic> beats_sent_;
};

}  // namespace dtrain::supervise
