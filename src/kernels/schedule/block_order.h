#pragma once

#include "kernels/device.h"

namespace dfa {

// Of the kernel that sorts the work tiles of sections of heads by the lengths of their lists
// (forward/block_order.cuh), and of who takes them (ListedTileScheduler).
struct BlockOrderArgs {
  int heads;    // of all batches
  int tiles;    // of queries of a head
  int section;  // heads whose tiles are dealt out together: their k and v fit the L2
  int tile_rows;
  unsigned* taken;  // how many work tiles were
  int* work_tiles;  // head * tiles + tile of each, in the order in which they are dealt out

  DFA_HOST_DEVICE int all() const { return heads * tiles; }
};

// Its threads, classes of lengths that it sorts by, and its shared memory.
inline constexpr int kBlockOrderThreads = 256;
inline constexpr int kBlockClasses = 64;
inline constexpr int kBlockOrderSmemBytes = 4 * kBlockClasses;

}  // namespace dfa
