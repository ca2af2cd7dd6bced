#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/schedule/seqlen_info.h"
#include "spec/forward_config.h"

namespace dfa {

// The work tiles of packed sequences, of the list that sequence_tiles made, each for all heads: a
// thread block takes the next one when it has room. The list begins with the longest sequences, and
// a sequence with its longest tiles, so those that are taken last have little to do; a fixed deal,
// by rounds, would fall in step with sequences of one length. One is taken ahead, as the counter's
// answer takes as long as a tile's copy.
//
// kNoted: which work tiles a block took since recompute_queue.h last met stands in shared memory:
// those that are done again are walked from there.
template <bool kNoted>
class VarlenTileScheduler {
 public:
  static constexpr int kAtOnce = kVarlenTilesAtOnce;

  DFA_DEVICE VarlenTileScheduler(const PackedArgs& packed, int heads, unsigned notes)
      : packed_(packed), heads_(heads), notes_(notes), at_(0), noted_(0) {
    ahead_ = take();
    take_next();
  }

  DFA_DEVICE bool more() const { return work_tile_ < packed_.tile_counts[0] * heads_; }
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

  DFA_DEVICE int head() const { return work_tile_ % heads_; }
  DFA_DEVICE const SequenceTile& sequence_tile() const {
    return packed_.q_tiles[work_tile_ / heads_];
  }
  DFA_DEVICE int tile() const { return sequence_tile().tile; }

 private:
  DFA_DEVICE int take() const {
    return static_cast<int>(ptx::add_1(reinterpret_cast<unsigned*>(packed_.tile_counts + 2)));
  }
  DFA_DEVICE void take_next() {
    work_tile_ = ahead_;
    ahead_ = take();
    note();
  }
  DFA_DEVICE void note() {
    if constexpr (!kNoted) return;
    ptx::store_shared(notes_ + 4 * at_, static_cast<unsigned>(work_tile_));
    noted_ = at_ + 1;
  }
  DFA_DEVICE int noted(int at) const { return static_cast<int>(ptx::load_shared(notes_ + 4 * at)); }

  const PackedArgs& packed_;
  int heads_;
  unsigned notes_;
  int at_, noted_;  // since the start: this one, those that are noted
  int ahead_, work_tile_;
};

}  // namespace dfa
