#pragma once

#include "kernels/device.h"
#include "kernels/either.h"
#include "kernels/schedule/block_args.h"
#include "kernels/softmax/tile_mask.h"

// Lists of blocks (Problem::blocks) in the place of ranges of tiles: which tiles a thread block
// walks, and which bitmap each has. Kernels without lists walk ranges, with the machine code of
// before, and are passed no lists.
namespace dfa {

// What a kernel of this configuration is passed.
template <auto kConfig>
using KernelArgsOf = Either<kConfig.blocks, BlockKernelArgs, KernelArgs>;

// A tile of a list, or none: -1 where an entry is no block, the mask hides all of it, or its bitmap
// is not there. The bitmap is kFullBlock where there is none; `part` counts the block's tiles.
struct ListedTile {
  int tile, bitmap, part;
};

// One list, walked in tiles of kTile rows.
template <int kTile>
class TileList {
 public:
  // `tiles`: those that the mask shows.
  DFA_DEVICE TileList(const int* counts, const int* indices, const int* bitmaps, int list,
                      int entries, int block, int bitmap_count, TileRange tiles)
      : indices_(indices + static_cast<long long>(list) * entries),
        bitmaps_(bitmaps == nullptr ? nullptr : bitmaps + static_cast<long long>(list) * entries),
        entries_(entries),
        parts_(block / kTile),
        bitmap_count_(bitmap_count),
        tiles_(tiles) {
    const int count = counts[list];
    steps_ = (count < 0 ? 0 : count > entries ? entries : count) * parts_;
  }

  DFA_DEVICE int steps() const { return steps_; }

  DFA_DEVICE ListedTile at(int step) const {
    const int entry = step / parts_, part = step - entry * parts_, block = indices_[entry];
    const int bitmap = bitmaps_ == nullptr ? kFullBlock : bitmaps_[entry];
    const int tile = block >= 0 && block < entries_ ? block * parts_ + part : -1;
    const bool there =
        tile >= tiles_.begin && tile < tiles_.end && bitmap >= kFullBlock && bitmap < bitmap_count_;
    return {there ? tile : -1, bitmap, part};
  }

 private:
  const int *indices_, *bitmaps_;
  int entries_, parts_, bitmap_count_, steps_;
  TileRange tiles_;
};

DFA_DEVICE int map_of(const BlockArgs& blocks, int batch, int head) {
  return batch * blocks.batch_maps + head * blocks.head_maps;
}

// Tiles of keys that the queries of a thread block see, which lie in one block of the lists.
template <int kTile>
DFA_DEVICE TileList<kTile> key_list(const BlockArgs& blocks, int batch, int head, int query,
                                    TileRange tiles) {
  const int list = map_of(blocks, batch, head) * blocks.rows + query / blocks.block_q;
  return {blocks.kv_counts, blocks.kv_indices, blocks.kv_bitmaps, list,
          blocks.columns,   blocks.block_k,    blocks.bitmaps,    tiles};
}

// Tiles of queries of one head that see the keys of a thread block, likewise.
template <int kTile>
DFA_DEVICE TileList<kTile> query_list(const BlockArgs& blocks, int batch, int head, int key,
                                      TileRange tiles) {
  const int list = map_of(blocks, batch, head) * blocks.columns + key / blocks.block_k;
  return {blocks.q_counts, blocks.q_indices, blocks.q_bitmaps, list,
          blocks.rows,     blocks.block_q,   blocks.bitmaps,   tiles};
}

// The steps of a thread block that owns queries: the tiles of a range.
template <int kTile, bool kBlocks>
struct KeySteps {
  TileRange range;

  static DFA_DEVICE KeySteps of(const KernelArgs&, int, int, int, TileRange tiles) {
    return {tiles};
  }
  DFA_DEVICE int begin() const { return range.begin; }
  DFA_DEVICE int end() const { return range.end; }
  DFA_DEVICE ListedTile at(int step) const { return {step, kFullBlock, 0}; }
};

// Those of a list.
template <int kTile>
struct KeySteps<kTile, true> {
  TileList<kTile> list;

  static DFA_DEVICE KeySteps of(const BlockKernelArgs& args, int batch, int head, int query,
                                TileRange tiles) {
    return {key_list<kTile>(args.blocks, batch, head, query, tiles)};
  }
  DFA_DEVICE int begin() const { return 0; }
  DFA_DEVICE int end() const { return list.steps(); }
  DFA_DEVICE ListedTile at(int step) const { return list.at(step); }
};

// A step of a thread block that owns keys: a tile of queries of a query head, or none.
struct ListedPlace {
  int head, tile, bitmap, part;
};

// Its steps, the lists of the query heads of its group one after the other.
template <int kTile>
class ListedQuerySteps {
 public:
  DFA_DEVICE ListedQuerySteps(const BlockArgs& blocks, int batch, int first_head, int heads,
                              int key, TileRange tiles)
      : blocks_(blocks),
        batch_(batch),
        first_head_(first_head),
        key_(key),
        tiles_(tiles),
        steps_(0) {
    for (int head = 0; head < heads; ++head) steps_ += list(head).steps();
  }

  DFA_DEVICE int steps() const { return steps_; }

  // Requires a step below steps().
  DFA_DEVICE ListedPlace at(int step) const {
    for (int head = 0;; ++head) {
      const TileList<kTile> of_head = list(head);
      if (step < of_head.steps()) {
        const ListedTile tile = of_head.at(step);
        return {first_head_ + head, tile.tile, tile.bitmap, tile.part};
      }
      step -= of_head.steps();
    }
  }

 private:
  DFA_DEVICE TileList<kTile> list(int head) const {
    return query_list<kTile>(blocks_, batch_, first_head_ + head, key_, tiles_);
  }

  const BlockArgs& blocks_;
  int batch_, first_head_, key_;
  TileRange tiles_;
  int steps_;
};

}  // namespace dfa
