#pragma once

#include "kernels/schedule/block_order.h"
#include "kernels/schedule/counted_scheduler.cuh"

namespace dfa {

// Work tiles of lists of blocks, in the order that block_order made.
struct ListedWorkTiles {
  const BlockOrderArgs& order;

  DFA_DEVICE int count() const { return order.all(); }
  DFA_DEVICE unsigned* taken() const { return order.taken; }
};

template <bool kNoted>
class ListedTileScheduler : public CountedTileScheduler<ListedWorkTiles, kNoted> {
  using Base = CountedTileScheduler<ListedWorkTiles, kNoted>;
  using Base::work_tile, Base::work_tiles;

 public:
  DFA_DEVICE ListedTileScheduler(const BlockOrderArgs& order, unsigned notes)
      : Base({order}, notes) {}

  // Of all batches, and which of its tiles.
  DFA_DEVICE int head() const { return listed() / work_tiles().order.tiles; }
  DFA_DEVICE int tile() const { return listed() % work_tiles().order.tiles; }

 private:
  DFA_DEVICE int listed() const { return work_tiles().order.work_tiles[work_tile()]; }
};

}  // namespace dfa
