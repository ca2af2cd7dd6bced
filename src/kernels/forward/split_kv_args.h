#pragma once

#include "kernels/args.h"
#include "kernels/forward/descale_args.h"
#include "kernels/schedule/seqlen_info.h"

namespace dfa {

// Splits of a tile of queries where they have a size of their own, at most: that of longer
// sequences doubles until so many are enough, which bounds the workspace.
inline constexpr int kMostFixedSplits = 32;
// SplitKvArgs::split_tiles of none: no sequence is as long.
inline constexpr int kWholeSplit = 1 << 25;

// What a thread block does with one tile of queries: from tile `from` of the keys that these see to
// tile `to`. The tile's keys are in `tile.splits` splits, of which this is number `tile.split`.
// Where a split leaves what others join: part `first_part` is the first one's, those of the others
// lie `part_step` apart from `next_part` on.
struct alignas(16) SplitPiece {
  SequenceTile tile;
  int from, to;
  int work;     // the tile's number among all sequences'
  int is_last;  // of its thread block
  int first_part, next_part, part_step;
  int next;  // the place of the block's next piece in the list of all

  DFA_HOST_DEVICE int part(int split) const {
    return split == 0 ? first_part : next_part + (split - 1) * part_step;
  }
};

// How keys are cut into splits on the device, and what these leave.
struct SplitKvArgs {
  int heads;        // of key heads, or of packed query heads: all do the same
  int key_tile;     // keys of a tile
  int blocks;       // thread blocks of a head, among which the keys of all sequences are dealt out
  int split_tiles;  // tiles of keys of a split, whatever the company is; 0: by all lengths
  int most_splits;  // of a tile of queries, from 2 on; 0: as they come
  int most_works;   // tiles of queries of all sequences, at most
  int most_parts;
  int rows;            // of such a tile, by heads
  SplitPiece* first;   // [blocks], a copy of each one's first piece
  SplitPiece* pieces;  // [most_works + most_parts], with gaps
  unsigned* ended;     // [works, heads], how many splits have ended
  float* o;            // [parts, heads, rows, d_v]
  float* lse;          // [parts, heads, rows], to the base of 2
};

template <bool kVarlen>
DFA_HOST_DEVICE SeqlenInfo<kVarlen> seqlen_of(const SequenceTile& tile) {
  if constexpr (kVarlen) {
    return SeqlenInfo<true>::of(tile);
  } else {
    return {tile.batch};
  }
}

// What sm80_split_kv is passed.
struct SplitKvForwardArgs {
  KernelArgs args;
  SplitKvArgs splits;
  DescaleArgs k_descale, v_descale;  // of ForwardConfig::kv_e4m3
};

}  // namespace dfa
