#pragma once

#include <cstdint>

#include "trainer/train/training_state.hpp"

namespace dtrain::train {

// Counts where a training stands while a program goes through epochs(), so that a checkpoint's
// Place is right by itself: steps by optimizer_step(), the position by the one prepared loader that
// is gone through in an epoch. What it cannot know is an Error, never a guess. Not collective, and
// alike on all ranks.
//
// A step moves the place behind all batches given so far. An epoch is over when its pass is: at the
// last batch, or when the loop is left by break; from then on a checkpoint's place is the next
// one's beginning.
class PlaceCounter {
 public:
  // What a checkpoint stood at. The counting itself begins with begin_epochs().
  void resume_at(const Place& place) { place_ = place; }

  void begin_epochs();                   // throws Error within another epochs()
  void begin_epoch(std::int64_t epoch);  // the loop's body
  void end_epochs();                     // the loop is over, or was left
  std::int64_t next_epoch() const;       // where begin_epochs() goes on

  // A pass of a prepared loader: returns the position to begin at. Throws Error if it is not this
  // epoch's, or a second one in it.
  std::int64_t begin_pass(std::int64_t epoch);
  // At this position of the epoch.
  void end_pass(std::int64_t position);
  void leave_pass();                        // nothing if it has ended
  void give_batch() { has_given_ = true; }  // of the pass

  // Throws Error if a resume within the epoch has not been gone on with.
  void step();
  // After a step within a pass.
  void move_to(std::int64_t position) { place_.position = position; }

  bool counts() const { return counts_; }
  bool in_pass() const { return pass_ == Pass::open; }
  // The epoch's data are used up, and its body goes on: what a resume at place() does again.
  bool at_epochs_end() const { return in_epoch_ && pass_ == Pass::ended; }
  std::int64_t steps() const { return place_.step; }
  // Behind the last step, within its epoch.
  const Place& place() const { return place_; }
  // Of a checkpoint that the program asks for. Throws Error where it is not known.
  Place place_to_save() const;

 private:
  enum class Pass : std::uint8_t { none, open, ended, left };

  Place place_;
  bool counts_ = false;
  bool in_loop_ = false;
  bool in_epoch_ = false;
  bool stepped_outside_ = false;  // steps of this epoch without a pass
  bool has_given_ = false;        // batches, in this epoch's pass
  bool has_stepped_ = false;      // in this epoch's pass
  std::int64_t end_ = 0;          // of this epoch's pass
  Pass pass_ = Pass::none;
};

}  // namespace dtrain::train
