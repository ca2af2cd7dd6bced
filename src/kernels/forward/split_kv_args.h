#pragma once

#include "kernels/args.h"

namespace dfa {

// What a thread block does with one tile of queries: from tile `from` of the keys that these see to
// tile `to`. The tile's keys are in `tile.splits` splits, of which this is number `tile.split`,
// each of a block of its own; that of the first is `first_block`.
struct alignas(16) SplitPiece {
  SequenceTile tile;
  int from, to;
  int work;            // the tile's number among all sequences'
  int is_last;         // of its thread block
  int first_block;     // of the tile's first split
  int first_is_begun;  // that block has done another tile before
  int place;           // of this piece in the list of all
  int unused;

  // Where a split leaves its part: a block has two that others join, in its first and last piece.
  DFA_HOST_DEVICE int part(int split) const {
    return 2 * (first_block + split) + (split == 0 ? first_is_begun : 0);
  }
};

// How keys of packed sequences are cut into splits on the device, and what these leave.
struct SplitKvArgs {
  int heads;        // of key heads, or of packed query heads: all do the same
  int key_tile;     // keys of a tile
  int blocks;       // thread blocks of a head, among which the keys of all sequences are dealt out
  int split_tiles;  // tiles of keys of a split, whatever the lengths are; 0: by the lengths
  int most_works;   // tiles of queries of all sequences, at most
  int rows;         // of such a tile, by heads
  SplitPiece* first;   // [blocks], a copy of each one's first piece
  SplitPiece* pieces;  // [most_works + blocks], with gaps
  unsigned* ended;     // [works, heads], how many splits have ended
  float* o;            // [parts, heads, rows, d_v]
  float* lse;          // [parts, heads, rows], to the base of 2
};

// What sm80_split_kv is passed.
struct SplitKvForwardArgs {
  KernelArgs args;
  SplitKvArgs splits;
};

}  // namespace dfa
