#pragma once

#include "kernels/forward/descale_args.h"
#include "kernels/forward/sm90_args.h"

namespace dfa {

// Blocks of rows that have factors of their own.
struct DescaleBlocks {
  long long q, k, v;       // elements from one block's factor to the next one's
  int queries, tiles;      // of a block: rows of q, tiles of keys
  unsigned tiles_inverse;  // of MultipliedChunks
};

// What sm90_e4m3_forward is passed. Its map of v is of what pack_values leaves, in boxes of
// block_k columns and value_dim rows.
struct Sm90E4m3Args : Sm90ForwardArgs {
  DescaleArgs q_descale, k_descale, v_descale;
  DescaleBlocks blocks;  // of ForwardConfig::descale_blocks
};

// pack_values: v in e4m3, transposed, [b, hk, tiles of block_k keys, value_dim, block_k]. Keys and
// columns that there are none of are zeros. Of packed sequences [hk, tiles, …], where each has
// tiles of its own (first_value_tile); a tile that no sequence has keys in stays as it was.
struct PackValuesArgs {
  const void* from;
  void* to;
  KernelStrides strides;  // of v
  int heads, keys, columns, tiles;
  int sequences;  // packed ones, with their begins and lengths
  const int* cu_seqlens_k;
  const int* seqused_k;  // or null
};
inline constexpr int kPackThreads = 256;
// Of a key in shared memory, bytes: rows begin in different banks.
constexpr int packed_pitch(int columns) { return columns + 16; }

// Which of 16 keys lies at a place of theirs in v transposed. A thread's scores of a row are then,
// as they come, the four neighbours in k that it has of the weights: columns 2 t, 2 t + 1, 8 + 2 t,
// 9 + 2 t of thread t of four.
constexpr int key_at(int place) { return place / 4 * 2 + place % 2 + place % 4 / 2 * 8; }

}  // namespace dfa
