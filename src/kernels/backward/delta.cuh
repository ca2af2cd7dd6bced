#pragma once

#include "kernels/args.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/schedule/query_work_tile.cuh"
#include "kernels/softmax/online_softmax.cuh"
#include "kernels/tile/product_fp32.cuh"
#include "kernels/tile/tile.cuh"

// Before the backward: delta = rowsum(do * o) and the base-2 log-sum-exp of every query row, padded
// so that rows that do not exist or saw no key have probabilities of 0. Eight lanes share a row.
// They zero the dq semaphores as well, of which there are fewer than rows.
namespace dfa {

inline constexpr int kDeltaThreads = 128;  // of a block

// What a product reads of an element.
template <DType kElement>
DFA_DEVICE float4 as_operand(const float4& x) {
  if constexpr (kElement == DType::fp32) return x;
  return make_float4(__uint_as_float(ptx::round_tf32(x.x)), __uint_as_float(ptx::round_tf32(x.y)),
                     __uint_as_float(ptx::round_tf32(x.z)), __uint_as_float(ptx::round_tf32(x.w)));
}

// In the order in which fp32 sums dp: where a row sees one key, o = v, and dp - delta is 0.
template <DType kElement>
DFA_DEVICE float row_product_in_order(const char* o, const char* d_o, int columns) {
  float sum = 0;
#pragma unroll 4
  for (int column = 0; column < columns; column += 4) {
    sum = dot(*reinterpret_cast<const float4*>(o + column * 4),
              as_operand<kElement>(*reinterpret_cast<const float4*>(d_o + column * 4)), sum);
  }
  return sum;
}

template <DType kElement>
DFA_DEVICE float row_product(const char* a, const char* b, int columns) {
  constexpr int kPerChunk = 16 / bytes_of(kElement);
  float sum = 0;
  for (int chunk = static_cast<int>(threadIdx.x) % 8; chunk * kPerChunk < columns; chunk += 8) {
    const uint4 x = *reinterpret_cast<const uint4*>(a + chunk * 16);
    const uint4 y = *reinterpret_cast<const uint4*>(b + chunk * 16);
    const unsigned xs[4] = {x.x, x.y, x.z, x.w};
    const unsigned ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float x0, x1, y0, y1;
      ptx::unpack<kElement>(xs[i], x0, x1);
      ptx::unpack<kElement>(ys[i], y0, y1);
      sum = fmaf(x0, y0, fmaf(x1, y1, sum));
    }
  }
  return ptx::quad_sum(sum + __shfl_xor_sync(ptx::kWholeWarp, sum, 4));
}

// The first row of a thread block, of padded ones of a head.
template <bool kVarlen>
DFA_DEVICE QueryWorkTile<kVarlen> delta_rows(const KernelArgs& args) {
  constexpr int kRows = kDeltaThreads / 8;
  if constexpr (kVarlen) {
    return query_work_tile<kRows, true>(args, blockIdx.x);
  } else {
    const int blocks = args.padded_sq / kRows;
    const int head = static_cast<int>(blockIdx.x) / blocks;
    return {{head / args.hq}, head % args.hq, 0, static_cast<int>(blockIdx.x) % blocks * kRows};
  }
}

template <DType kElement, bool kVarlen = false>
__global__ void delta(const __grid_constant__ KernelArgs args) {
  constexpr float kLog2E = 1.4426950408889634f;
  ptx::griddepcontrol_wait();
  const unsigned semaphore = blockIdx.x * blockDim.x + threadIdx.x;
  if (semaphore < static_cast<unsigned>(args.dq_semaphore_count)) args.dq_semaphores[semaphore] = 0;
  if constexpr (kVarlen) {
    if (!has_query_work_tile<kDeltaThreads / 8>(args, blockIdx.x)) return;
  }
  const auto work = delta_rows<kVarlen>(args);
  const int row = work.query + static_cast<int>(threadIdx.x) / 8;
  const bool exists = row < work.seq.sq(args);
  const long long offset = q_head_offset<kElement>(args, args.o_strides, work.seq, work.head) +
                           bytes_of(kElement) * row * args.o_strides.row;
  const char* o = static_cast<const char*>(args.o) + offset;
  const char* d_o = static_cast<const char*>(args.d_o) + offset;
  const int columns = exists ? args.d_v : 0;
  float sum;
  if constexpr (bytes_of(kElement) == 4) {
    sum = row_product_in_order<kElement>(o, d_o, columns);
  } else {
    sum = row_product<kElement>(o, d_o, columns);
  }
  if (threadIdx.x % 8 != 0) return;
  const float lse =
      exists ? args.lse[work.seq.lse_offset(args, work.head) + row] : -ptx::infinity();
  const bool seen = lse != -ptx::infinity();
  const long long at = work.seq.padded_offset(args, work.head) + row;
  args.lse_log2[at] = seen ? (kStepwise<kElement> ? lse : lse * kLog2E) : ptx::infinity();
  args.delta[at] = seen ? sum : 0.f;
}

}  // namespace dfa
