#pragma once

#include "kernels/schedule/item_walk.h"
#include "kernels/schedule/seqlen_info.h"

namespace dfa {

// An ItemWalk along the list of packed sequences' tiles (sequence_tiles.cuh), each for all heads. The
// list begins with the longest sequences, and the direction turns with every round, so blocks come
// out about even without asking each other for work.
class VarlenWalk : public BasicItemWalk<Items> {
  using ItemWalk = BasicItemWalk<Items>;

 public:
  DFA_HOST_DEVICE VarlenWalk(const PackedArgs& packed, int heads, int block, int blocks)
      : ItemWalk(row_of(packed.tile_counts[0] * heads), block, blocks),
        list_(packed.q_tiles),
        heads_(heads) {}

  DFA_HOST_DEVICE int head() const { return ItemWalk::tile() % heads_; }
  DFA_HOST_DEVICE const SequenceTile& sequence_tile() const {
    return list_[ItemWalk::tile() / heads_];
  }
  DFA_HOST_DEVICE int tile() const { return sequence_tile().tile; }

 private:
  static DFA_HOST_DEVICE Items row_of(int tiles) {
    return {.heads = 1, .tiles = tiles, .section = 1, .late_first = 0};
  }

  const SequenceTile* list_;
  int heads_;
};

}  // namespace dfa
