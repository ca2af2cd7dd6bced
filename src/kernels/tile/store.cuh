#pragma once

#include "kernels/ptx/arithmetic.cuh"
#include "kernels/tile/product.cuh"

// The way of a tile's sums out to global memory: rounded into shared memory, then written 16 bytes
// a thread.
namespace dfa {

// Two neighbours of a row, rounded; `column` is even.
template <DType kElement, typename Layout>
DFA_DEVICE void store_pair(char* tile, unsigned row, unsigned column, float first, float second) {
  const unsigned byte = column * bytes_of(kElement);
  char* to = tile + Layout::offset(row, byte / 16) + byte % 16;
  if constexpr (bytes_of(kElement) == 4) {
    *reinterpret_cast<float2*>(to) = make_float2(first, second);
  } else {
    *reinterpret_cast<unsigned*>(to) = ptx::pack<kElement>(first, second);
  }
}

// Rounds sum[m][n] * factor[m][row half] into the tile from row `first` on. With kSharing warps for
// a row, warp `part` holds every kSharing-th 16 columns.
template <DType kElement, int kSharing, int kRows, int kColumns>
DFA_DEVICE void stage_sums(char* tile, int first, int part, const Sum<kRows, kColumns>& sum,
                           const float (&factor)[kRows][2]) {
  using Layout = TileLayout<kElement, kColumns * 8 * kSharing>;
  const unsigned lane = ptx::thread_index() % 32;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int column = (n / 2 * kSharing + part) * 16 + n % 2 * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned row = static_cast<unsigned>(first + m * 16 + half * 8) + lane / 4;
        const float f = factor[m][half];
        store_pair<kElement, Layout>(tile, row, static_cast<unsigned>(column) + lane % 4 * 2,
                                     sum[m][n][2 * half] * f, sum[m][n][2 * half + 1] * f);
      }
    }
  }
}

// Writes rows [first, first + kRows) of a head that exist. All threads of the block.
template <DType kElement, int kRows, int kColumns, int kThreads>
DFA_DEVICE void store_tile(const char* tile, char* head, long long row_stride, int first, int rows,
                           int columns) {
  using Layout = TileLayout<kElement, kColumns>;
  constexpr unsigned kChunks = Layout::kChunks;
  constexpr int kPerChunk = 16 / bytes_of(kElement);
#pragma unroll 4
  for (unsigned copy = ptx::thread_index(); copy < kRows * kChunks; copy += kThreads) {
    const unsigned chunk = copy % kChunks;
    const int row = first + static_cast<int>(copy / kChunks);
    if (row >= rows || static_cast<int>(chunk) * kPerChunk >= columns) continue;
    *reinterpret_cast<uint4*>(head + bytes_of(kElement) * row * row_stride + chunk * 16) =
        *reinterpret_cast<const uint4*>(tile + Layout::offset(copy / kChunks, chunk));
  }
}

}  // namespace dfa
