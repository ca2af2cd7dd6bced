#pragma once

#include "kernels/args.h"

// What kernels of problems with lists of blocks are passed: a type of its own, so that the
// arguments of all others lie where they lay.
namespace dfa {

// BlockLists of dfa/attention.h, and their sizes.
struct BlockArgs {
  const int* kv_counts;
  const int* kv_indices;
  const int* kv_bitmaps;
  const int* q_counts;
  const int* q_indices;
  const int* q_bitmaps;
  const unsigned* bits;
  int bitmaps;
  int block_q, block_k;
  int rows, columns;          // blocks of queries and of keys
  int row_words;              // of a bitmap
  int batch_maps, head_maps;  // from one batch's or query head's lists to the next's, 0: the same

  DFA_HOST_DEVICE const unsigned* bits_of(int bitmap) const {
    return bits + static_cast<long long>(bitmap) * block_q * row_words;
  }
};

struct BlockKernelArgs : KernelArgs {
  BlockArgs blocks;
};

}  // namespace dfa
