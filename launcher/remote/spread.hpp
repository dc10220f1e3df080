#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

// Who gets from whom what goes to many hosts alike: one or a few from this machine, and each gives
// on what it has while it still gets more: a pipelined chain as Kascade's (Martin and others:
// Scalable and Reliable Data Broadcast with Kascade, HPDIC 2013), so that with links alike all have
// it after little more than the time of one. It branches, as TakTuk's tree (Claudel, Huard,
// Richard: TakTuk, adaptive deployment of remote executions, HPDC 2009), where it grows too long,
// and where a host loses whom it got it from.
namespace dtrain {

struct SpreadLimits {
  int seeds = 1;         // hosts that get it from this machine; 0: all of them
  int chain = 32;        // hosts one behind the other
  int readers = 2;       // hosts that one host gives it to at a time, where the chain branches
  int failures = 2;      // of one host with peers, until it gets it from this machine
  int out_of_reach = 4;  // tries that met nobody, and none that did: hosts do not reach each other
  std::chrono::milliseconds wait{5000};  // for a place beside a host that is about to give
  // Of a peer that gives nothing, and as much more for each host before it: when one falls silent,
  // the next behind it is the first to look for another, and those behind that one need not.
  std::chrono::milliseconds silence{20000};
  std::chrono::milliseconds silence_each{1000};
  bool loopback = false;  // also by loopback's addresses: tests have all hosts on one machine
};
// With so many hosts or fewer, each gets it from this machine.
inline constexpr std::size_t kFewHosts = 8;
// The most that may be asked for as `seeds`.
inline constexpr int kMaxSeeds = 4;

// How a source was lost.
enum class SpreadLoss {
  unmet,   // nothing came of it
  silent,  // it began well, and gave nothing any more
  ended    // it began well, and ended, or gave what is wrong
};

// How it stands with one host.
struct SpreadHost {
  std::optional<std::size_t> peer;  // it gets it from this one
  std::optional<std::size_t> lost;  // the last that it did not get it from
  bool here = false;                // or from this machine
  bool announced = false;           // whether it can give is known
  bool gives = false;
  bool whole = false;
  bool gone = false;     // what it gave from has ended
  bool suspect = false;  // another host failed with it
  bool silent = false;   // it fell silent to another host, and nothing was heard of it since
  bool met = false;      // another host got something of it
  int failures = 0;
};

struct SpreadChoice {
  enum class From { here, peer, wait } from = From::here;
  std::size_t peer = 0;
  int depth = 0;  // hosts between that peer and somebody who has it whole
  bool operator==(const SpreadChoice&) const = default;
};

// Pure: from whom hosts[who], who has nobody now, gets it.
SpreadChoice choose_source(const std::vector<SpreadHost>& hosts, std::size_t who,
                           const SpreadLimits& limits);

// One such distribution. Safe to use from several threads.
class Spread : public std::enable_shared_from_this<Spread> {
 public:
  // `say` is told, for each host by its name, where it gets it from, and what failed.
  Spread(const SpreadLimits& limits, std::stop_token stop,
         std::function<void(const std::string&, const std::string&)> say);

  struct Peer {
    std::string address;  // of a socket, as hex
    std::string token;
    std::chrono::milliseconds silence{};  // after which it is given up
  };

  // A host's part in it, until what it gives from has ended.
  class Seat {
   public:
    Seat(std::shared_ptr<Spread> spread, std::size_t index, std::string name, std::string token);
    ~Seat();
    Seat(const Seat&) = delete;
    Seat& operator=(const Seat&) = delete;

    const std::string& token() const { return token_; }  // that its own readers show
    const SpreadLimits& limits() const { return spread_->limits_; }
    // It listens there; absent: it does not give.
    void announce(const std::optional<std::string>& address);
    // Whom it gets it from; absent: this machine. Waits a little for a good place.
    std::optional<Peer> source();
    // That did not do.
    void failed(const std::string& why, SpreadLoss how);
    void got_more();
    void got_it_whole();

   private:
    std::shared_ptr<Spread> spread_;
    std::size_t index_;
    std::string name_;
    std::string token_;
  };
  std::unique_ptr<Seat> join(const std::string& name);

 private:
  struct Place {
    std::string name;
    Peer peer;
  };

  const SpreadLimits limits_;
  const std::stop_token stop_;
  const std::function<void(const std::string&, const std::string&)> say_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<SpreadHost> hosts_;
  std::vector<Place> places_;  // of hosts_
};

}  // namespace dtrain
