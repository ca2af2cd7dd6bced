#pragma once

#include "kernels/ptx/arithmetic.cuh"
#include "kernels/tile/product.cuh"

// The way of a tile's sums out to global memory: rounded into shared memory, then written 16 bytes
// a thread.
namespace dfa {

// Rounds sum[m][n] * factor[m][row half] into the tile from row `first` on. With kSharing warps for
// a row, warp `part` holds every kSharing-th 16 columns.
template <DType kElement, int kSharing, int kRows, int kColumns>
DFA_DEVICE void stage_sums(char* tile, int first, int part, const Sum<kRows, kColumns>& sum,
                           const float (&factor)[kRows][2]) {
  using Layout = Swizzle<kColumns * 8 * kSharing>;
  const unsigned lane = ptx::thread_index() % 32;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const unsigned chunk = static_cast<unsigned>((n / 2 * kSharing + part) * 2 + n % 2);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned row = static_cast<unsigned>(first + m * 16 + half * 8) + lane / 4;
        const float f = factor[m][half];
        *reinterpret_cast<unsigned*>(tile + Layout::offset(row, chunk) + lane % 4 * 4) =
            ptx::pack<kElement>(sum[m][n][2 * half] * f, sum[m][n][2 * half + 1] * f);
      }
    }
  }
}

// Writes rows [first, first + kRows) of a head that exist. All threads of the block.
template <int kRows, int kColumns, int kThreads>
DFA_DEVICE void store_tile(const char* tile, char* head, long long row_stride, int first, int rows,
                           int columns) {
  constexpr unsigned kChunks = kColumns / 8;
#pragma unroll 4
  for (unsigned copy = ptx::thread_index(); copy < kRows * kChunks; copy += kThreads) {
    const unsigned chunk = copy % kChunks;
    const int row = first + static_cast<int>(copy / kChunks);
    if (row >= rows || static_cast<int>(chunk * 8) >= columns) continue;
    *reinterpret_cast<uint4*>(head + 2 * row * row_stride + chunk * 16) =
        *reinterpret_cast<const uint4*>(tile + Swizzle<kColumns>::offset(copy / kChunks, chunk));
  }
}

}  // namespace dfa
