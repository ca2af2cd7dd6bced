#pragma once

#include "kernels/args.h"
#include "kernels/schedule/key_work_tile.cuh"
#include "kernels/softmax/tile_mask.h"

namespace dfa {

// The steps of a block that owns keys: tiles of queries from the last, for one query head after the
// other, or each tile for all of them (kHeadsByTile); of a part of a work tile (kParts), its share
// of the tiles. Where no query sees the keys, any() says so and more() does not.
template <typename Mask, int kBlockK, int kBlockQ, bool kParts = false, bool kHeadsByTile = false>
struct QueryWalk {
  TileRange tiles;
  int tile, head, last_head, first_head = 0;

  template <bool kVarlen>
  static DFA_DEVICE QueryWalk of(const KernelArgs& args, const KeyWorkTile<kVarlen>& work) {
    TileRange tiles = query_tiles(Mask::of(args, work.seq), work.key, kBlockK, kBlockQ);
    if (kParts && work.part > 0) {
      const int first = tiles.begin, all = tiles.end - first;
      tiles = {first + args.parts.begin(work.part, all),
               first + args.parts.begin(work.part + 1, all)};
    }
    const int group = args.hq / args.hk, head = work.head * group;
    return {tiles, tiles.end - 1, head, head + group - 1, head};
  }
  // At the start: all tiles.
  DFA_DEVICE int count() const { return (tiles.end - tiles.begin) * heads_left(); }
  DFA_DEVICE bool any() const { return tiles.begin < tiles.end; }
  DFA_DEVICE bool is_last() const { return head == last_head && tile == tiles.begin; }
  DFA_DEVICE bool more() const { return kHeadsByTile ? tile >= tiles.begin : head <= last_head; }
  // How many steps from this one on walk the tiles `seen`; 0 or less where this one does not.
  DFA_DEVICE int left_of(const TileRange& seen) const {
    if constexpr (kHeadsByTile) {
      const int begin = seen.begin < tiles.begin ? tiles.begin : seen.begin;
      if (tile < begin || tile >= seen.end) return 0;
      return (tile - begin) * (last_head - first_head + 1) + heads_left();
    }
    if (seen.begin <= tiles.begin && seen.end >= tiles.end) return count();
    return tile < seen.end ? tile - seen.begin + 1 : 0;
  }
  DFA_DEVICE QueryWalk before() const {
    QueryWalk walk = *this;
    if constexpr (kHeadsByTile) {
      const bool first = head == first_head;
      walk.head = first ? last_head : head - 1;
      walk.tile = first ? tile + 1 : tile;
    } else {
      const bool first = tile + 1 == tiles.end;
      walk.tile = first ? tiles.begin : tile + 1;
      walk.head = first ? head - 1 : head;
    }
    return walk;
  }
  DFA_DEVICE void next() {
    if constexpr (kHeadsByTile) {
      if (++head <= last_head) return;
      head = first_head;
      --tile;
    } else if (--tile < tiles.begin) {
      tile = tiles.end - 1;
      ++head;
    }
  }

 private:
  DFA_DEVICE int heads_left() const { return last_head - head + 1; }
};

}  // namespace dfa
