#pragma once

#include "kernels/args.h"
#include "kernels/schedule/key_work.cuh"
#include "kernels/softmax/tile_mask.h"

namespace dfa {

// The steps of a block that owns keys: tiles of queries from the last, for one query head after the
// other; of a part of a work (kParts), its share of each head's. Where no query sees the keys,
// any() says so and more() does not.
template <int kBlockK, int kBlockQ, bool kParts = false>
struct QueryWalk {
  TileRange tiles;
  int tile, head, last_head;

  static DFA_DEVICE QueryWalk of(const KernelArgs& args, const KeyWork& work) {
    TileRange tiles = query_tiles(TileMask::of(args), work.key, kBlockK, kBlockQ);
    if (kParts && work.part > 0) {
      const int first = tiles.begin, all = tiles.end - first;
      tiles = {first + args.parts.begin(work.part, all),
               first + args.parts.begin(work.part + 1, all)};
    }
    const int group = args.hq / args.hk;
    return {tiles, tiles.end - 1, work.head * group, work.head * group + group - 1};
  }
  // At the start: all tiles.
  DFA_DEVICE int count() const { return (tiles.end - tiles.begin) * (last_head - head + 1); }
  DFA_DEVICE bool any() const { return tiles.begin < tiles.end; }
  DFA_DEVICE bool is_last() const { return head == last_head && tile == tiles.begin; }
  DFA_DEVICE bool more() const { return head <= last_head; }
  DFA_DEVICE QueryWalk before() const {
    QueryWalk walk = *this;
    const bool first = tile + 1 == tiles.end;
    walk.tile = first ? tiles.begin : tile + 1;
    walk.head = first ? head - 1 : head;
    return walk;
  }
  DFA_DEVICE void next() {
    if (--tile < tiles.begin) {
      tile = tiles.end - 1;
      ++head;
    }
  }
};

}  // namespace dfa
