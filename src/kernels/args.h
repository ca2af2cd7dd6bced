#pragma once

#include "dfa/dtype.h"
#include "dfa/mask.h"
#include "kernels/schedule/rounding_order.h"
#include "spec/split_q.h"

// What every kernel is passed: one plain value, the same to g++, nvcc and NVRTC. What only one pass
// reads is null in the other.
namespace dfa {

// In elements; the last dimension is contiguous.
struct KernelStrides {
  long long batch;
  long long head;
  long long row;
};

// A tile of the rows of a packed sequence, and where that lies (SeqlenInfo); which of how many
// splits of its keys, where these are cut (ForwardConfig::split_kv).
struct alignas(16) SequenceTile {
  int batch, tile, sq, sk;
  int q_begin, k_begin, split, splits;
};

// Of packed sequences: what the caller says of them (Sequences in dfa/attention.h), and the tiles
// of all that sequence_tiles makes of that, so many at most. Null and 0 where tensors are dense.
struct PackedArgs {
  const int* cu_seqlens_q;  // [b + 1]
  const int* cu_seqlens_k;
  const int* seqused_q;  // [b], or null
  const int* seqused_k;
  SequenceTile* q_tiles;
  SequenceTile* k_tiles;
  int* tile_counts;  // of q, of k, and work tiles of q that were taken (VarlenTileScheduler)
  int total_q, total_k;
  int q_tile_rows, k_tile_rows;  // 0: no such list
  int most_q_tiles, most_k_tiles;
  int gap_slices;  // thread blocks that clear the rows between two sequences
  int element_bytes;
  int padded_rows;  // of a head in the backward's workspace
};

// What is added to logits, and its gradient: fp32, of every query and key of its batches and heads.
// Steps in elements; 0: one value for all.
struct BiasArgs {
  const void* values;
  DType type;
  int key;  // 1 or 0
  KernelStrides strides;
  float* gradients;
  KernelStrides gradient_strides;
  int batches, heads;  // that have gradients of their own
};

// Of paged problems (Sequences in dfa/attention.h).
struct PagedArgs {
  const int* block_table;
  long long table_row;
  const int* leftpad_k;  // [b], or null
  int page;              // rows of one
  int pages;             // of the cache
};

// Of problems whose logits are not plain: softcap, and what Logits in dfa/attention.h says. Kernels
// of Hopper have the cap times log2(e) and, for its inverse, scale / cap (ExponentLogits).
struct LogitArgs {
  float softcap, inverse_softcap;
  const float* alibi_slopes;
  long long slopes_of_batch;
  const float* sinks;
  float* d_sinks;
  BiasArgs bias;
};

struct KernelArgs {
  const void* q;
  const void* k;
  const void* v;
  void* o;     // read by the backward
  float* lse;  // [b, hq, sq], natural logarithm; null where the forward's caller wants none
  const void* d_o;
  void* dq;
  void* dk;
  void* dv;
  // Workspace of the backward, [b, hq, padded_sq] each. In fp32 lse_log2 is natural. Padding and
  // rows that see no key have lse_log2 = +inf, delta = 0, so that their probabilities come out as
  // 0.
  float* lse_log2;
  float* delta;
  // Where blocks of keys add up dq in order (BackwardConfig::dq): the sums, and for each tile how
  // many have added to it.
  float* dq_sums;
  unsigned* dq_semaphores;

  KernelStrides q_strides;  // and dq's; likewise below
  KernelStrides k_strides;
  KernelStrides v_strides;
  KernelStrides o_strides;

  int b;
  int hq;
  int hk;
  int sq;
  int sk;
  int d;
  int d_v;
  int padded_sq;
  int head_swizzle;  // key heads whose blocks alternate where they wait for each other

  // Window sides as in Mask, cut to 2^29.
  int left;
  int right;

  float scale;
  float scale_log2;      // scale * log2(e)
  float magnitude_log2;  // |scale| * log2(e)

  // Last, as registers of kernels that read none of it spill when it stands in between.
  int dq_semaphore_count;   // which the kernel of delta zeroes
  RoundingOrder rounding;   // of a grid that rounds dq as well
  int persistent_clusters;  // clusters that take work tiles, which the last of those counters
                            // counts
  int zeroed_ahead;         // of how many heads later blocks zero sums that are rounded here too
  SplitQ parts;             // of work tiles that pairs take which stay
  unsigned chunk_inverse;   // of MultipliedChunks, where `chunk` is above 0
  float* part_sums;         // what those leave of dv and dk
  int tail_heads;           // from this key head on all alternate
  int chunk;                // of RangeMask: of a mask's chunks, or less the keys of its prefix
  PackedArgs packed;
  LogitArgs logits;
  PagedArgs paged;  // or DropoutArgs
};

}  // namespace dfa
