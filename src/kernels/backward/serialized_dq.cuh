#pragma once

#include "kernels/backward/dq_semaphore.cuh"
#include "kernels/tile/product.cuh"
#include "kernels/tile/store.cuh"
#include "spec/backward_config.h"

// dq as a sum that the keys' thread blocks add to one by one (dq_semaphore.cuh): five products
// instead of seven.
//
// Shares lie in memory as they lie in registers: [tile][warp][fragment][lane][4].
namespace dfa {

template <BackwardConfig kConfig>
struct SerializedDq : DqSemaphore<kConfig> {
  using Semaphore = DqSemaphore<kConfig>;
  using typename Semaphore::Head;
  static constexpr DType kElement = kConfig.element;
  static constexpr int kWarpRows = kConfig.serialized_rows();
  static constexpr int kParts = kConfig.serialized_parts();  // warps beside each other in a row
  static constexpr int kRows = kWarpRows / 16;
  static constexpr int kColumns = kConfig.head_dim / 8 / kParts;
  static constexpr int kTileFloats = kConfig.block_q * kConfig.head_dim;
  using Share = Sum<kRows, kColumns>;

  static DFA_DEVICE int part() { return static_cast<int>(ptx::thread_index() / 32) % kParts; }
  static DFA_DEVICE int first_row() {
    return static_cast<int>(ptx::thread_index() / 32) / kParts * kWarpRows;
  }

  template <typename Visit>
  static DFA_DEVICE void each_fragment(const Share& share, const Visit& visit) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) visit((m * kColumns + n) * 128, share[m][n]);
    }
  }

  static DFA_DEVICE float* lane_sums(const KernelArgs& args, unsigned tile) {
    const unsigned thread = ptx::thread_index();
    return args.dq_sums + static_cast<long long>(tile) * kTileFloats +
           thread / 32 * (kRows * kColumns * 128) + thread % 32 * 4;
  }

  static DFA_DEVICE void add(const KernelArgs& args, Head head, int tile, int key,
                             const Share& share) {
    float* to = lane_sums(args, Semaphore::index(args, head, tile));
    if (Semaphore::blocks_before(args, head, tile * kConfig.block_q, kConfig.block_q, key) == 0) {
      each_fragment(share, [&](int at, const float(&four)[4]) {
        *reinterpret_cast<uint4*>(to + at) = ptx::to_bits(four);
      });
    } else {
      each_fragment(share, [&](int at, const float(&four)[4]) { ptx::add_4(to + at, four); });
    }
  }

  static DFA_DEVICE void read(const KernelArgs& args, unsigned tile, Share& sum) {
    const float* from = lane_sums(args, tile);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        ptx::from_bits(sum[m][n], *reinterpret_cast<const uint4*>(from + (m * kColumns + n) * 128));
      }
    }
  }
};

// The sums as dq's elements.
template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    sm80_serialized_dq(const __grid_constant__ KernelArgs args) {
  using Dq = SerializedDq<kConfig>;
  constexpr DType kElement = kConfig.element;
  extern __shared__ __align__(128) char smem[];
  const int head = static_cast<int>(blockIdx.x) / Dq::tiles(args);
  const int query = static_cast<int>(blockIdx.x) % Dq::tiles(args) * kConfig.block_q;
  const TileRange keys = key_tiles(TileMask::of(args), query, kConfig.block_q, kConfig.block_k);

  typename Dq::Share sum;
  clear(sum);
  if (keys.begin < keys.end) Dq::read(args, blockIdx.x, sum);
  float factor[Dq::kRows][2];
#pragma unroll
  for (int m = 0; m < Dq::kRows; ++m) factor[m][0] = factor[m][1] = args.scale;
  stage_sums<kElement, Dq::kParts>(smem, Dq::first_row(), Dq::part(), sum, factor);
  __syncthreads();
  store_tile<kElement, kConfig.block_q, kConfig.head_dim, kConfig.threads()>(
      smem,
      static_cast<char*>(args.dq) +
          head_offset<kElement>(args.q_strides, head / args.hq, head % args.hq),
      args.q_strides.row, query, args.sq, args.d);
}

}  // namespace dfa
