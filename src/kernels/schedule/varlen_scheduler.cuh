#pragma once

#include "kernels/schedule/counted_scheduler.cuh"
#include "kernels/schedule/seqlen_info.h"

namespace dfa {

// The work tiles of packed sequences, of the list that sequence_tiles made, each for all heads. It
// begins with the longest sequences, and a sequence with its longest tiles.
struct SequenceWorkTiles {
  const PackedArgs& packed;
  int heads;

  DFA_DEVICE int count() const { return packed.tile_counts[0] * heads; }
  DFA_DEVICE unsigned* taken() const { return reinterpret_cast<unsigned*>(packed.tile_counts + 2); }
};

template <bool kNoted, bool kAhead>
class VarlenTileScheduler : public CountedTileScheduler<SequenceWorkTiles, kNoted, kAhead> {
  using Base = CountedTileScheduler<SequenceWorkTiles, kNoted, kAhead>;
  using Base::work_tile, Base::work_tiles;

 public:
  DFA_DEVICE VarlenTileScheduler(const PackedArgs& packed, int heads, unsigned notes)
      : Base({packed, heads}, notes) {}

  DFA_DEVICE int head() const { return work_tile() % work_tiles().heads; }
  DFA_DEVICE const SequenceTile& sequence_tile() const {
    return work_tiles().packed.q_tiles[work_tile() / work_tiles().heads];
  }
  DFA_DEVICE int tile() const { return sequence_tile().tile; }
};

}  // namespace dfa
