#pragma once

#include "kernels/schedule/tile_scheduler.h"

// Work tiles that may have to be done again: a block's work tiles in turn, and after every kAtOnce
// of them those again whose workers asked for it. `Notes` tells how they asked:
//   meet(i)            waits, for the ith time, until all work tiles so far are done
//   asked(i), any()    did work tile i of these ask, did one?
//   start(walk)        none has asked, these work tiles begin at `walk`
//   go_back(walk)      `walk` is set to where these work tiles began
//   park(walk, state), unpark(walk)   hold both for a thread whose registers they would take
// Without kRecomputes it is the plain walk. Whether a work tile is done again depends on nothing
// but the work tile: any grid gives the same bits.
namespace dfa {

template <typename Notes, bool kRecomputes, typename Walk = PersistentTileScheduler>
class RecomputeQueue {
 public:
  DFA_HOST_DEVICE RecomputeQueue(const Walk& walk, const Notes& notes)
      : walk_(walk), notes_(notes), state_(0) {
    if constexpr (kRecomputes) start();
  }

  DFA_HOST_DEVICE bool more() const { return walk_.more(); }
  DFA_HOST_DEVICE int head() const { return walk_.head(); }
  DFA_HOST_DEVICE int tile() const { return walk_.tile(); }
  DFA_HOST_DEVICE const Walk& scheduler() const { return walk_; }

  // Is this work tile done again? Which of these work tiles is it?
  DFA_HOST_DEVICE bool again() const { return kRecomputes && (state_ & kAgain) != 0; }
  DFA_HOST_DEVICE int place() const { return static_cast<int>(state_ % kAgain); }

  DFA_HOST_DEVICE void next() {
    step();
    if constexpr (kRecomputes) see_to_recomputes();
  }

  // Between these two nothing but the notes holds the walk.
  DFA_HOST_DEVICE void park() const {
    if constexpr (kRecomputes) notes_.park(walk_, state_);
  }
  DFA_HOST_DEVICE void unpark() {
    if constexpr (kRecomputes) state_ = notes_.unpark(walk_);
  }

 private:
  // One register: the place among these work tiles, are they done again, how often all have met.
  static constexpr unsigned kAgain = 2 * Walk::kAtOnce, kMeeting = 2 * kAgain;

  DFA_HOST_DEVICE void see_to_recomputes() {
    if (!again()) {
      if (!at_end()) return;
      notes_.meet(static_cast<int>(state_ / kMeeting));
      state_ = (state_ & ~(kMeeting - 1)) + kMeeting;
      if (notes_.any()) {
        state_ |= kAgain;
        notes_.go_back(walk_);
      }
    }
    if (again()) {
      while (!at_end() && !notes_.asked(place())) step();
      if (!at_end()) return;
      state_ &= ~(kMeeting - 1);
    }
    start();
  }

  DFA_HOST_DEVICE void start() {
    walk_.start();
    notes_.start(walk_);
  }

  DFA_HOST_DEVICE void step() {
    walk_.next();
    if constexpr (kRecomputes) ++state_;
  }
  DFA_HOST_DEVICE bool at_end() const { return place() == Walk::kAtOnce || !walk_.more(); }

  Walk walk_;
  Notes notes_;
  unsigned state_;
};

}  // namespace dfa
