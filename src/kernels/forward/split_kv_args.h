#pragma once

#include "kernels/args.h"

namespace dfa {

// How keys of packed sequences are cut into splits on the device, and what these leave.
struct SplitKvArgs {
  int heads;     // of key heads, packed query heads apart: what a tile of queries comes as often as
  int key_tile;  // keys of a tile
  int rows;      // of a tile of queries, by heads
  int blocks;    // thread blocks that should all have a split
  int split_tiles;  // tiles of keys of a split, whatever the lengths are; 0: by the lengths
  int most_splits;  // of all sequences of a head
  unsigned* ended;  // [splits, heads]: of a tile's first split, how many of its splits have ended
  float* o;         // [splits, heads, rows, d_v]
  float* lse;       // [splits, heads, rows], to the base of 2
};

// What sm80_split_kv is passed.
struct SplitKvForwardArgs {
  KernelArgs args;
  SplitKvArgs splits;
};

}  // namespace dfa
