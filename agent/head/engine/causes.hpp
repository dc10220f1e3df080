#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "agent/head/engine/node_clock.hpp"
#include "launcher/core/ids.hpp"

// Which of an attempt's failures was the first: pure.
namespace dtrain::head {

// A rank that failed by itself, or a node that was lost or failed with no rank of its own.
struct Failure {
  std::optional<int> rank;  // absent: the node
  NodeId node;
  std::string what;                            // "rank 3 on node-1: exit code 3"
  std::string clock;                           // the machine whose clock `at` is of
  std::optional<std::chrono::nanoseconds> at;  // the latest that it can have been
  std::chrono::nanoseconds loose{0};           // it can have been so much earlier
  std::optional<ClockOffset> offset;           // of that clock then; absent: not known
  std::chrono::nanoseconds heard{0};           // by the head's clock: it was before that
  std::chrono::nanoseconds guess{0};           // by no clock that is known; only to name one
  bool for_peer = false;                       // it says itself that another rank was gone
};

struct Causes {
  std::vector<std::size_t> first;  // the root cause, then those that may have been before it
  std::vector<std::size_t> later;  // in order
  bool known = true;               // whether that is for what clocks can tell; else for want of it
  std::chrono::nanoseconds within{0};  // those of `first` all happened, if known
  std::string reason;                  // empty: there was no failure
};

// The root cause is the first by time: by the clock where both are of one machine, else by clocks
// of which the offset is known, if they can tell. What none was certainly before is concurrent with
// it, the rest are consequences; so is what says itself that a peer was gone, where anything else
// failed.
Causes decide_causes(const std::vector<Failure>& failures);

// By the head's clock, the middle of what it can be.
std::optional<std::chrono::nanoseconds> time_of(const Failure& failure);
// Half of that: it was within so much of it.
std::optional<std::chrono::nanoseconds> uncertainty_of(const Failure& failure);

// A collective, or the store, found that a peer was gone: in the words of Gloo, NCCL, libuv's store
// or our trainer.
bool says_peer_gone(const std::string& words);

}  // namespace dtrain::head
