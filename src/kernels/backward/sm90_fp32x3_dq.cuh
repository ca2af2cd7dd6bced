#pragma once

#include "kernels/backward/dq_semaphore.cuh"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/tile/fp32x3_product.cuh"

// dq of sm90_fp32x3_backward: every block of keys adds its share of each tile to fp32 sums,
// serialized (dq_semaphore.cuh). Shares lie in memory as they lie in registers: [tile][64 of its
// queries][fragment of 8 columns][thread][4].
namespace dfa {

template <BackwardConfig kConfig>
struct Sm90Fp32x3Dq : DqSemaphore<kConfig> {
  using Semaphore = DqSemaphore<kConfig>;
  using typename Semaphore::Head;
  static constexpr int kHalves = kConfig.block_q / kGroupRows;
  static constexpr int kFragments = kConfig.head_dim / 8;
  static constexpr int kTileFloats = kConfig.block_q * kConfig.head_dim;
  using Share = float[kHalves][kFragments][4];

  static DFA_DEVICE float* thread_sums(const KernelArgs& args, unsigned tile, int half) {
    return args.dq_sums + static_cast<long long>(tile) * kTileFloats +
           half * kGroupRows * kConfig.head_dim +
           static_cast<int>(ptx::thread_index() % kGroupThreads) * 4;
  }

  static DFA_DEVICE void add(const KernelArgs& args, Head head, int tile, int key,
                             const Share& share) {
    const unsigned index = Semaphore::index(args, head, tile);
    const bool first =
        Semaphore::blocks_before(args, head, tile * kConfig.block_q, kConfig.block_q, key) == 0;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float* to = thread_sums(args, index, half);
      if (first) {
#pragma unroll
        for (int n = 0; n < kFragments; ++n) {
          *reinterpret_cast<uint4*>(to + n * 4 * kGroupThreads) = ptx::to_bits(share[half][n]);
        }
      } else {
#pragma unroll
        for (int n = 0; n < kFragments; ++n) ptx::add_4(to + n * 4 * kGroupThreads, share[half][n]);
      }
    }
  }
};

// dq of the sums: rows of a thread as in tile/product.cuh.
template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kGroupThreads)
    sm90_fp32x3_dq(const __grid_constant__ KernelArgs args) {
  using Dq = Sm90Fp32x3Dq<kConfig>;
  const int head = static_cast<int>(blockIdx.x) / Dq::tiles(args);
  const int query = static_cast<int>(blockIdx.x) % Dq::tiles(args) * kConfig.block_q;
  const TileRange keys = key_tiles(TileMask::of(args), query, kConfig.block_q, kConfig.block_k);
  const bool seen = keys.begin < keys.end;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float* dq = static_cast<float*>(args.dq) + head / args.hq * args.q_strides.batch +
              head % args.hq * args.q_strides.head + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < Dq::kHalves; ++half) {
    const float* from = Dq::thread_sums(args, blockIdx.x, half);
    const int row = query + half * kGroupRows + warp * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < Dq::kFragments; ++n) {
      if (n * 8 + lane % 4 * 2 >= args.d) continue;
      const float4 sum = seen ? *reinterpret_cast<const float4*>(from + n * 4 * kGroupThreads)
                              : make_float4(0, 0, 0, 0);
      float* to = dq + row * args.q_strides.row + n * 8;
      if (row < args.sq) {
        *reinterpret_cast<float2*>(to) = make_float2(sum.x * args.scale, sum.y * args.scale);
      }
      if (row + 8 < args.sq) {
        *reinterpret_cast<float2*>(to + 8 * args.q_strides.row) =
            make_float2(sum.z * args.scale, sum.w * args.scale);
      }
    }
  }
}

}  // namespace dfa
