#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dtrain::node {

// How it stands with an attempt, as its node knows.
enum class AttemptState : std::uint8_t {
  known,       // its folder was found, or it was just told of: nobody has looked for more
  preparing,   // its files are being written; there is no supervisor yet
  starting,    // of a supervisor that we started, our child, which has not said hello
  supervised,  // by one that has, or that was there; whether it lives its lock tells
  ended,       // its last event was passed on
  done,        // the head wants nothing more of it
};
enum class AttemptNews : std::uint8_t {
  told,      // StartAttempt, maybe again
  spawned,   // a supervisor was started
  found,     // one had been started before
  hello,     // it has opened its socket
  stuck,     // it has not, for too long, and was killed
  finished,  // its last event came
  over,      // that was acknowledged, or it cannot be started, or it is to be forgotten
};

constexpr AttemptState next(AttemptState state, AttemptNews news) {
  using enum AttemptState;
  constexpr std::array<std::array<AttemptState, 7>, 6> kNext{{
      // told, spawned, found, hello, stuck, finished, over
      {preparing, starting, supervised, supervised, known, ended, done},        // known
      {preparing, starting, supervised, preparing, preparing, ended, done},     // preparing
      {starting, starting, starting, supervised, supervised, ended, done},      // starting
      {supervised, starting, supervised, supervised, supervised, ended, done},  // supervised
      {ended, ended, ended, ended, ended, ended, done},                         // ended
      {done, done, done, done, done, done, done},                               // done
  }};
  return kNext[static_cast<std::size_t>(state)][static_cast<std::size_t>(news)];
}

}  // namespace dtrain::node
