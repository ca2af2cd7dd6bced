#pragma once

#include "kernels/backward/sm90_fp32x3_args.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/tile/fp32x3_product.cuh"
#include "kernels/tile/split_copy.cuh"

// Before the backward in fp32 of bf16 parts: delta = rowsum(do * o) and lse of every query row,
// padded as delta.cuh has them.
//
// delta is the diagonal of o do^T by the very products that make dp^T = v do^T. Where one key has
// all the weight of a row, o is its v, and dp - delta has to be 0.
namespace dfa {

template <int kValueDim>
struct Sm90Fp32x3Delta {
  static constexpr int kTile = kPlanes * tile_bytes(kGroupRows, kValueDim);
  static constexpr int kFragments = kGroupRows / 8;

  static DFA_DEVICE void load(const Sm90Fp32x3DeltaArgs& a, unsigned smem, unsigned barrier,
                              int row, int head) {
    const int batch = head / a.args.hq;
    ptx::arrive_expecting(barrier, 2 * kTile);
    load_planes<kGroupRows, kValueDim>(smem, a.o, barrier, row, head % a.args.hq, batch, a.args.b);
    load_planes<kGroupRows, kValueDim>(smem + kTile, a.d_o, barrier, row, head % a.args.hq, batch,
                                       a.args.b);
  }

  // The product of a row with itself, if this lane has it.
  static DFA_DEVICE bool find(float& value, const float (&products)[kFragments][4], int row,
                              int half) {
    bool found = false;
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i != row) continue;
        value = products[n][2 * half + i];
        found = true;
      }
    }
    return found;
  }

  static DFA_DEVICE void store(const KernelArgs& args, int head, int row, float sum) {
    const float lse =
        row < args.sq ? args.lse[static_cast<long long>(head) * args.sq + row] : -ptx::infinity();
    const bool seen = lse != -ptx::infinity();
    const long long at = static_cast<long long>(head) * args.padded_sq + row;
    args.lse_log2[at] = seen ? lse : ptx::infinity();
    args.delta[at] = seen ? sum : 0.f;
  }
};

template <int kValueDim>
__global__ void __launch_bounds__(kGroupThreads)
    sm90_fp32x3_delta(const __grid_constant__ Sm90Fp32x3DeltaArgs a) {
  using Kernel = Sm90Fp32x3Delta<kValueDim>;
  extern __shared__ __align__(1024) char smem[];
  const unsigned o = ptx::shared_address(smem), d_o = o + Kernel::kTile,
                 barrier = d_o + Kernel::kTile;
  const int tiles = a.args.padded_sq / kGroupRows;
  const int head = static_cast<int>(blockIdx.x) / tiles;
  const int row = static_cast<int>(blockIdx.x) % tiles * kGroupRows;
  if (threadIdx.x == 0) {
    ptx::init_barrier(barrier, 1);
    ptx::fence_barrier_init();
    Kernel::load(a, o, barrier, row, head);
  }
  __syncthreads();
  ptx::wait(barrier, 0);
  float products[Kernel::kFragments][4];
  multiply_fp32x3_scores<kValueDim, Factors::swapped>(products, o, d_o);

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int in_tile = 16 * warp + 8 * half + lane / 4;
    float sum = 0;
    if (Kernel::find(sum, products, in_tile, half)) {
      Kernel::store(a.args, head, row + in_tile, sum);
    }
  }
}

}  // namespace dfa
