#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/order.cuh"
#include "spec/forward_config.h"

namespace dfa {

// Work tiles that lie in a list, the longest first, from which a thread block takes the next one
// when it has room: those that are taken last have little to do, while a fixed deal, by rounds,
// would fall in step with their lengths. `WorkTiles` says how many there are, count(), and where it
// is counted how many were taken, taken().
//
// kAhead: one is taken ahead, for who walks on when copies are to start and the counter's answer
// takes as long as one of them.
//
// kNoted: which work tiles a block took since recompute_queue.h last met stands in shared memory:
// those that are done again are walked from there.
template <typename WorkTiles, bool kNoted, bool kAhead = true>
class CountedTileScheduler {
 public:
  static constexpr int kAtOnce = kCountedTilesAtOnce;

  DFA_DEVICE CountedTileScheduler(const WorkTiles& work_tiles, unsigned notes)
      : work_tiles_(work_tiles), notes_(notes), at_(0), noted_(0), ahead_(kAhead ? take() : 0) {
    take_next();
  }

  DFA_DEVICE bool more() const { return work_tile_ < work_tiles_.count(); }
  DFA_DEVICE void next() {
    ++at_;
    if (kNoted && at_ < noted_) {
      work_tile_ = noted(at_);
    } else {
      take_next();
    }
  }

  // This one is the first of those that are noted.
  DFA_DEVICE void start() {
    at_ = 0;
    note();
  }

  struct Place {
    int first_head, round, turn, work_tile;  // words of recompute_notes.cuh
  };
  DFA_DEVICE Place place() const { return {at_, noted_, ahead_, work_tile_}; }
  DFA_DEVICE void go(const Place& place) {
    at_ = place.first_head;
    noted_ = place.round;
    ahead_ = place.turn;
    work_tile_ = place.work_tile;
  }
  DFA_DEVICE void go_back(const Place&) {
    at_ = 0;
    work_tile_ = noted(0);
  }

 protected:
  DFA_DEVICE const WorkTiles& work_tiles() const { return work_tiles_; }
  DFA_DEVICE int work_tile() const { return work_tile_; }

 private:
  DFA_DEVICE int take() const { return static_cast<int>(ptx::add_1(work_tiles_.taken())); }
  DFA_DEVICE void take_next() {
    work_tile_ = kAhead ? ahead_ : take();
    if constexpr (kAhead) ahead_ = take();
    note();
  }
  DFA_DEVICE void note() {
    if constexpr (!kNoted) return;
    ptx::store_shared(notes_ + 4 * at_, static_cast<unsigned>(work_tile_));
    noted_ = at_ + 1;
  }
  DFA_DEVICE int noted(int at) const { return static_cast<int>(ptx::load_shared(notes_ + 4 * at)); }

  WorkTiles work_tiles_;
  unsigned notes_;
  int at_, noted_;  // since the start: this one, those that are noted
  int ahead_, work_tile_;
};

}  // namespace dfa
