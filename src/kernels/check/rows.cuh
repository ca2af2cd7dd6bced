#pragma once

#include "kernels/check/args.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/softmax/tile_mask.h"

// Rows of o anew, in fp32 without tensor cores, and how far o is from them: what the accuracy guard
// asks for while attention runs. A block has one row. Each warp walks groups of four keys with a
// softmax of its own, lane i holding the columns i, i + 32, …; the first warp merges them.
namespace dfa {

extern __shared__ char smem[];

template <DType kElement>
DFA_DEVICE float element_of(const void* tensor, long long at) {
  if constexpr (bytes_of(kElement) == 4) {
    return static_cast<const float*>(tensor)[at];
  } else {
    float low, high;
    ptx::unpack<kElement>(static_cast<const unsigned short*>(tensor)[at], low, high);
    return low;
  }
}

DFA_DEVICE float over_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(ptx::kWholeWarp, x, step);
  return x;
}

template <int kHeld>
struct PartOfRow {
  float maximum = -ptx::infinity();
  float sum = 0;
  float o[kHeld] = {};

  DFA_DEVICE void rescale(float top) {
    const float factor = expf(maximum - top);
    sum *= factor;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) o[i] *= factor;
    maximum = top;
  }
};

template <DType kElement, int kHeld>
DFA_DEVICE void take_keys(PartOfRow<kHeld>& part, const KernelArgs& args, const float (&q)[kHeld],
                          long long k_at, long long v_at, int first, int end) {
  constexpr int kKeys = 4;
  const int lane = static_cast<int>(threadIdx.x % 32);
  float s[kKeys];
#pragma unroll
  for (int j = 0; j < kKeys; ++j) {
    const long long at = k_at + (first + j < end ? first + j : first) * args.k_strides.row;
    s[j] = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int x = lane + 32 * i;
      if (x < args.d) s[j] += q[i] * element_of<kElement>(args.k, at + x);
    }
  }
  float top = part.maximum;
#pragma unroll
  for (int j = 0; j < kKeys; ++j) {
    s[j] = over_warp(s[j]) * args.scale;
    if (first + j >= end) s[j] = -ptx::infinity();
    top = fmaxf(top, s[j]);
  }
  part.rescale(top);
#pragma unroll
  for (int j = 0; j < kKeys; ++j) {
    const float weight = expf(s[j] - top);
    part.sum += weight;
    const long long at = v_at + (first + j < end ? first + j : first) * args.v_strides.row;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int x = lane + 32 * i;
      if (x < args.d_v) part.o[i] += weight * element_of<kElement>(args.v, at + x);
    }
  }
}

// kHeld: columns of a lane, enough for d and dv.
template <DType kElement, int kHeld>
__global__ void __launch_bounds__(kCheckThreads) check_rows(const __grid_constant__ RowsArgs a) {
  const KernelArgs& args = a.args;
  const long long row = drawn_row(a.seed, blockIdx.x, a.rows);
  const int query = static_cast<int>(row % args.sq);
  const int head = static_cast<int>(row / args.sq % args.hq);
  const long long batch = row / args.sq / args.hq;
  const int kv_head = head / (args.hq / args.hk);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const auto start = [&](const KernelStrides& s, int h) { return batch * s.batch + h * s.head; };

  float q[kHeld];
  const long long q_at = start(args.q_strides, head) + query * args.q_strides.row;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int x = lane + 32 * i;
    q[i] = x < args.d ? element_of<kElement>(args.q, q_at + x) : 0;
  }
  const RangeMask mask = RangeMask::of(args);
  const int end = mask.key_end(query);
  PartOfRow<kHeld> part;
  for (int key = mask.key_begin(query) + 4 * warp; key < end; key += 4 * kCheckWarps) {
    take_keys<kElement>(part, args, q, start(args.k_strides, kv_head),
                        start(args.v_strides, kv_head), key, end);
  }

  float* const parts = reinterpret_cast<float*>(smem);
  float* const mine = parts + warp * check_part(kHeld);
  mine[0] = part.maximum;
  mine[1] = part.sum;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) mine[2 + lane + 32 * i] = part.o[i];
  __syncthreads();
  if (warp != 0) return;
  for (int other = 1; other < kCheckWarps; ++other) {
    const float* const its = parts + other * check_part(kHeld);
    if (!(its[1] > 0)) continue;  // it had no keys
    const float top = fmaxf(part.maximum, its[0]);
    part.rescale(top);
    const float factor = expf(its[0] - top);
    part.sum += its[1] * factor;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) part.o[i] += its[2 + lane + 32 * i] * factor;
  }

  const long long o_at = start(args.o_strides, head) + query * args.o_strides.row;
  const float inverse = part.sum > 0 ? 1 / part.sum : 0;
  float worst = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int x = lane + 32 * i;
    const float truth = part.o[i] * inverse;
    if (x >= args.d_v || !(fabsf(truth) < ptx::infinity())) continue;  // inputs that are not finite
    const float off = fabsf(element_of<kElement>(args.o, o_at + x) - truth);
    worst = off <= worst ? worst : (off < ptx::infinity() ? off : ptx::infinity());
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    worst = fmaxf(worst, __shfl_xor_sync(ptx::kWholeWarp, worst, step));
  }
  if (lane == 0) a.errors[blockIdx.x] = worst;
}

}  // namespace dfa
