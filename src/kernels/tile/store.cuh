#pragma once

#include "kernels/ptx/arithmetic.cuh"
#include "kernels/tile/product.cuh"

// The way of a warp's sums out to global memory.
namespace dfa {

struct Destination {
  char* base;  // of the head
  long long row_bytes;
  int first;    // row of the warp's first
  int rows;     // of the head
  int columns;  // of the head
};

// Rounds sum[m][n] * factor[m][row half] through the warp's own part of shared memory, so that rows
// are written 16 bytes a lane.
template <DType kElement, int kRows, int kColumns>
DFA_DEVICE void store_rows(char* staging, const Sum<kRows, kColumns>& sum,
                           const float (&factor)[kRows][2], const Destination& to) {
  using Layout = Swizzle<kColumns * 8>;
  const int lane = static_cast<int>(ptx::thread_index() % 32);
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m * 16 + half * 8 + lane / 4;
        const float f = factor[m][half];
        *reinterpret_cast<unsigned*>(staging + Layout::offset(row, n) + lane % 4 * 4) =
            ptx::pack<kElement>(sum[m][n][2 * half] * f, sum[m][n][2 * half + 1] * f);
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kRows * 16 * kColumns / 32; ++i) {
    const int row = (i * 32 + lane) / kColumns;
    const int chunk = (i * 32 + lane) % kColumns;
    if (to.first + row >= to.rows || chunk * 8 >= to.columns) continue;
    *reinterpret_cast<uint4*>(to.base + (to.first + row) * to.row_bytes + chunk * 16) =
        *reinterpret_cast<const uint4*>(staging + Layout::offset(row, chunk));
  }
}

}  // namespace dfa
