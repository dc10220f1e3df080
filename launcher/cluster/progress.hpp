#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "launcher/core/ids.hpp"

namespace dtrain {

// What an `up` or `down` of many nodes tells while it is at work. Called from several threads, one
// at a time; must not throw.
struct NodeProgress {
  enum class State : std::uint8_t {
    at_work,  // `step` has begun, or `text` is new in it
    waiting,  // `step` takes long; `text` says what for, and until when
    done,     // `step` is done, after `took`
    ready,    // the node is done with everything
    failed,   // the node is out; `text` says why in one line
  };
  NodeId node;
  State state = State::at_work;
  std::string step;  // connect, check, agent, identity, files, setup, start, join, …
  std::string text;  // what exactly, for people; one line
  std::chrono::milliseconds took{0};
};
using ProgressSink = std::function<void(const NodeProgress&)>;

// On how many machines an `up` or `down` works at once, unless it is told.
inline constexpr int kMaxParallel = 64;

const char* to_string(NodeProgress::State state) noexcept;

}  // namespace dtrain
