#pragma once

#include "kernels/schedule/query_work_tile.cuh"
#include "kernels/softmax/lazy_rescale_softmax.cuh"
#include "kernels/softmax/online_softmax.cuh"
#include "kernels/tile/product_tf32.cuh"
#include "kernels/tile/store.cuh"
#include "kernels/tile/tile.cuh"
#include "primitives/probe_args.h"

// Tiles on their way in, through products of a warp, and out again; the running softmax.
namespace dfa::probe {

// A sum as a row-major array of floats, where a lane has it.
template <int kRows, int kColumns>
DFA_DEVICE void fetch_sum(Sum<kRows, kColumns>& sum, const void* from, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = m * 16 + lane / 4 + i / 2 * 8, column = n * 8 + lane % 4 * 2 + i % 2;
        sum[m][n][i] = static_cast<const float*>(from)[row * stride + column];
      }
    }
  }
}

template <int kRows, int kColumns>
DFA_DEVICE void put_sum(void* to, int stride, const Sum<kRows, kColumns>& sum) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = m * 16 + lane / 4 + i / 2 * 8, column = n * 8 + lane % 4 * 2 + i % 2;
        static_cast<float*>(to)[row * stride + column] = sum[m][n][i];
      }
    }
  }
}

// out = a b^T: tiles of 32 rows of a and 32 of b, of which n and m are there, with kColumns
// columns, of which the arrays have 8 fewer. Rows and columns that are not there count as zeros.
template <DType kElement, int kColumns>
__global__ void multiply_tiles(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) char smem[];
  constexpr int kBytes = bytes_of(kElement) * 32 * kColumns;
  const unsigned a = ptx::shared_address(smem);
  const char* rows_a = static_cast<const char*>(args.a);
  const char* rows_b = static_cast<const char*>(args.b);
  load_tile<kElement, 32, kColumns, 32>(a, rows_a, kColumns - 8, 0, args.n, kColumns - 8);
  load_tile<kElement, 32, kColumns, 32>(a + kBytes, rows_b, kColumns - 8, 0, args.m, kColumns - 8);
  ptx::commit_copies();
  ptx::wait_copies<0>();
  __syncwarp();
  using Reader = typename ReaderOf<kElement, kColumns>::Type;
  Sum<2, 4> sum;
  clear(sum);
  multiply_rows<kElement>(sum, Reader::by_rows(a), Reader::by_columns(a + kBytes));
  put_sum(args.out, 32, sum);
}

// The same with the left operand read once, for elements of 16 bits.
template <DType kElement, int kColumns>
__global__ void multiply_registers_tile(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) char smem[];
  constexpr int kBytes = bytes_of(kElement) * 32 * kColumns;
  const unsigned a = ptx::shared_address(smem);
  load_tile<kElement, 32, kColumns, 32>(a, static_cast<const char*>(args.a), kColumns - 8, 0,
                                        args.n, kColumns - 8);
  load_tile<kElement, 32, kColumns, 32>(a + kBytes, static_cast<const char*>(args.b), kColumns - 8,
                                        0, args.m, kColumns - 8);
  ptx::commit_copies();
  ptx::wait_copies<0>();
  __syncwarp();
  using Reader = typename ReaderOf<kElement, kColumns>::Type;
  LeftOperand<2, kColumns / 16> left;
  read_left(left, Reader::by_rows(a));
  Sum<2, 4> sum;
  clear(sum);
  multiply_rows<kElement>(sum, left, Reader::by_columns(a + kBytes));
  put_sum(args.out, 32, sum);
}

// out = factor (round(c) b): c 16 x 32 in fp32, b 32 rows of kColumns, stored k by column; kSharing
// warps take turns at 16 columns. Through shared memory to an array with rows of kColumns + 8, of
// which n rows and m columns are written. Row r has the factor r + 1.
template <DType kElement, int kColumns, int kSharing>
__global__ void multiply_and_store(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) char smem[];
  constexpr int kThreads = 32 * kSharing, kFragments = kColumns / 8 / kSharing;
  const unsigned b = ptx::shared_address(smem), part = threadIdx.x / 32;
  load_tile<kElement, 32, kColumns, kThreads>(b, static_cast<const char*>(args.b), kColumns, 0, 32,
                                              kColumns);
  ptx::commit_copies();
  ptx::wait_copies<0>();
  __syncthreads();
  Sum<1, 4> given;
  fetch_sum(given, args.c, 32);
  typename Rounded<kElement, 1, 4>::Type left;
  round_to_left<kElement>(left, given);
  using Reader = typename ReaderOf<kElement, kColumns>::Type;
  Sum<1, kFragments> sum;
  clear(sum);
  multiply<kElement, kSharing>(sum, left, Reader::by_rows(b, part));
  __syncthreads();
  const float row = static_cast<float>(threadIdx.x % 32 / 4);
  const float factor[1][2] = {{1 + row, 9 + row}};
  stage_sums<kElement, kSharing>(smem, 0, static_cast<int>(part), sum, factor);
  __syncthreads();
  store_tile<kElement, 16, kColumns, kThreads>(smem, static_cast<char*>(args.out), kColumns + 8, 0,
                                               args.n, args.m);
}

DFA_DEVICE void put_softmax(const Args& args, const Sum<1, 1>& output, const float (&inverse)[2],
                            const float (&lse)[2]) {
  put_sum(args.out, 8, output);
  float* rows = static_cast<float*>(args.out) + 128 + threadIdx.x / 4;
  for (int half = 0; half < 2; ++half) {
    rows[8 * half] = inverse[half];
    rows[16 + 8 * half] = lse[half];
  }
}

// Each weight adds to the output's column that has its key modulo 8.
DFA_DEVICE void add_weights(Sum<1, 1>& output, const Sum<1, 4>& weights) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) output[0][0][i] += weights[0][n][i];
  }
}

// 16 queries of 32 keys each tile, n tiles; a has the scores, c the scale. out: 16 x 8 outputs,
// then inverse sums, then lse.
template <bool kStepwise>
__global__ void online_softmax(const __grid_constant__ Args args) {
  KernelArgs kernel{};
  kernel.scale = *static_cast<const float*>(args.c);
  kernel.scale_log2 = kernel.scale * 1.4426950408889634f;
  kernel.magnitude_log2 = fabsf(kernel.scale_log2);
  OnlineSoftmax<1, kStepwise> softmax(kernel);
  Sum<1, 1> output;
  clear(output);
  for (int tile = 0; tile < args.n; ++tile) {
    Sum<1, 4> scores;
    fetch_sum(scores, static_cast<const float*>(args.a) + tile * 512, 32);
    softmax.orient(scores);
    softmax.step(scores, output);
    add_weights(output, scores);
  }
  float inverse[1][2], lse[1][2];
  softmax.finish(inverse, lse);
  put_softmax(args, output, inverse[0], lse[0]);
}

// The same in parts.
inline __global__ void lazy_rescale_softmax(const __grid_constant__ Args args) {
  LazyRescaleSoftmax softmax(*static_cast<const float*>(args.c) * 1.4426950408889634f);
  softmax.start();
  Sum<1, 1> output;
  clear(output);
  for (int tile = 0; tile < args.n; ++tile) {
    Sum<1, 4> scores;
    fetch_sum(scores, static_cast<const float*>(args.a) + tile * 512, 32);
    if (softmax.update_max(scores[0])) softmax.rescale(output[0]);
    softmax.exp2(scores[0]);
    add_weights(output, scores);
  }
  float inverse[2], lse[2];
  softmax.finish(inverse, lse);
  put_softmax(args, output, inverse, lse);
}

// Scores of 32 rows and 32 columns from query n and key m on, under the mask in b: left, right, sq,
// sk. Transposed, rows are keys.
template <bool kTransposed>
__global__ void hide(const __grid_constant__ Args args) {
  const int* b = static_cast<const int*>(args.b);
  const TileMask mask{b[0], b[1], b[2], b[3]};
  Sum<2, 4> scores;
  fetch_sum(scores, args.a, 32);
  if constexpr (kTransposed) {
    hide_masked_transposed(scores, mask, args.m, args.n, -ptx::infinity());
  } else {
    hide_masked(scores, mask, args.n, args.m, -ptx::infinity());
  }
  put_sum(args.out, 32, scores);
}

// What block i of n query tiles of 64 work tiles at: batch, head, kv head, query. b: hq, hk, sq.
inline __global__ void work_tiles(const __grid_constant__ Args args) {
  const int* b = static_cast<const int*>(args.b);
  KernelArgs kernel{};
  kernel.hq = b[0];
  kernel.hk = b[1];
  kernel.sq = b[2];
  const QueryWorkTile<false> work = query_work_tile<64, false>(kernel, blockIdx.x);
  static_cast<int4*>(args.out)[blockIdx.x] =
      make_int4(work.seq.batch, work.head, work.kv_head, work.query);
}

}  // namespace dfa::probe
