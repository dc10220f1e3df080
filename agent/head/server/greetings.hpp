#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace dtrain::head {

// Connections that have not proven yet who they are. Whoever opens many of them drives out his own
// oldest ones, so that a node that takes a moment for its handshake gets in all the same.
class Greetings {
 public:
  // At most so many of one address, and in all.
  Greetings(std::size_t most_of_source, std::size_t most)
      : most_of_source_(most_of_source), most_(most) {}

  // A new one. `drop` ends it; it may be called until leave(), in enter() of a later one, which
  // makes it leave. Returns its number, from 1.
  std::uint64_t enter(const std::string& source, std::function<void()> drop);
  // It has proven who it is, or is over. A number that has left already is fine.
  void leave(std::uint64_t number);
  // Ends the oldest of the address that has most; false when there is none.
  bool drop_one();

  std::size_t size() const { return sources_.size(); }
  std::uint64_t dropped() const { return dropped_; }  // ever

 private:
  using Drops = std::map<std::uint64_t, std::function<void()>>;
  void drop_oldest(const Drops& of);

  std::size_t most_of_source_;
  std::size_t most_;
  std::map<std::string, Drops> waiting_;          // by source
  std::map<std::uint64_t, std::string> sources_;  // of each that has not left
  std::uint64_t last_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace dtrain::head
