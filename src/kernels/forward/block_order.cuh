#pragma once

#include "kernels/forward/sm90_blocks_args.h"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/schedule/block_lists.cuh"
#include "kernels/softmax/tile_mask.h"

// Before Hopper's forward over lists of blocks: the order of its work tiles, those with the longest
// lists first, and zero tiles taken. How long lists are is known on the device alone: nobody waits
// for it, and CUDA graphs hold.
//
// A thread block sorts the tiles of one section of heads, by classes of lengths; within one they
// come as they come, as no bit depends on the order.
namespace dfa {

// Up to 16 blocks each length is a class, then four are to a power of two; the longer, the lower.
DFA_DEVICE int block_class(int length) {
  constexpr int kLast = kBlockClasses - 1;
  if (length < 16) return kLast - length;
  const int power = 31 - __clz(length);
  const int at = 16 + (power - 4) * 4 + (length >> (power - 2) & 3);
  return at < kLast ? kLast - at : 0;
}

// Blocks in the list of a work tile, or as many as the mask shows where that is less.
DFA_DEVICE int listed_blocks(const Sm90BlocksForwardArgs& a, int work_tile) {
  const BlockArgs& blocks = a.blocks;
  const int head = work_tile / a.order.tiles, query = work_tile % a.order.tiles * a.order.tile_rows;
  const int map = map_of(blocks, head / a.args.hq, head % a.args.hq);
  const int count =
      blocks.kv_counts[static_cast<long long>(map) * blocks.rows + query / blocks.block_q];
  const TileRange seen = key_tiles(TileMask::of(a.args), query, a.order.tile_rows, blocks.block_k);
  return TileMask::clamp(count, seen.end - seen.begin);
}

__global__ void __launch_bounds__(kBlockOrderThreads)
    block_order(const __grid_constant__ Sm90BlocksForwardArgs a) {
  extern __shared__ __align__(128) char smem[];
  int* const offsets = reinterpret_cast<int*>(smem);
  const unsigned offsets_at = ptx::shared_address(smem);
  const BlockOrderArgs& order = a.order;
  const int thread = static_cast<int>(threadIdx.x);
  const int first = static_cast<int>(blockIdx.x) * order.section * order.tiles;
  const int last = first + order.section * order.tiles;
  const int end = last < order.all() ? last : order.all();
  const auto place_of = [&](int work_tile) {
    return offsets_at + 4 * block_class(listed_blocks(a, work_tile));
  };

  if (thread < kBlockClasses) offsets[thread] = 0;
  ptx::griddepcontrol_wait();
  if (first == 0 && thread == 0) *order.taken = 0;
  __syncthreads();
  for (int n = first + thread; n < end; n += kBlockOrderThreads) ptx::add_shared(place_of(n), 1);
  __syncthreads();

  int before = first;
  if (thread < kBlockClasses) {
    for (int i = 0; i < thread; ++i) before += offsets[i];
  }
  __syncthreads();
  if (thread < kBlockClasses) offsets[thread] = before;
  __syncthreads();
  for (int n = first + thread; n < end; n += kBlockOrderThreads) {
    order.work_tiles[ptx::add_shared(place_of(n), 1)] = n;
  }
}

}  // namespace dfa
