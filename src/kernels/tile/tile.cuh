#pragma once

#include "kernels/args.h"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/schedule/seqlen_info.h"
#include "kernels/tile/swizzle.h"

// Tiles of 16-bit elements: their way into shared memory, and out of it as matrix operands.
namespace dfa {

// Start of a head in global memory, in bytes: of a dense tensor, ...
template <DType kElement>
DFA_DEVICE long long head_offset(const KernelStrides& strides, int batch, int head) {
  return bytes_of(kElement) * (batch * strides.batch + head * strides.head);
}
// ... and of a sequence of q, o and their gradients, or of k, v and theirs.
template <DType kElement, typename Seqlen>
DFA_DEVICE long long q_head_offset(const KernelArgs& args, const KernelStrides& strides,
                                   const Seqlen& seq, int head) {
  return bytes_of(kElement) * (seq.q_offset(args, strides) + head * strides.head);
}
template <DType kElement, typename Seqlen>
DFA_DEVICE long long k_head_offset(const KernelArgs& args, const KernelStrides& strides,
                                   const Seqlen& seq, int head) {
  return bytes_of(kElement) * (seq.k_offset(args, strides) + head * strides.head);
}

// A tile of 4-byte elements lies in memory as one of twice as many 2-byte ones.
template <DType kElement, int kColumns>
using TileLayout = Swizzle<kColumns * bytes_of(kElement) / 2>;

// Starts the copy of rows [first, first + kRows) of a head into a tile. Rows from `rows` on and
// columns from `columns` on become zeros.
template <DType kElement, int kRows, int kColumns, int kThreads>
DFA_DEVICE void load_tile(unsigned tile, const char* head, long long row_stride, int first,
                          int rows, int columns) {
  using Layout = TileLayout<kElement, kColumns>;
  constexpr unsigned kChunks = Layout::kChunks;
  constexpr unsigned kTwos = kChunks & (~kChunks + 1);               // the power of two in it
  constexpr unsigned kAcross = kTwos < kThreads ? kTwos : kThreads;  // threads side by side
  constexpr unsigned kStep = kThreads / kAcross;                     // rows at a time
  constexpr int kPerChunk = 16 / bytes_of(kElement);
  const long long row_bytes = bytes_of(kElement) * row_stride;
  const unsigned row = threadIdx.x / kAcross;
  const unsigned chunk = threadIdx.x % kAcross;
  const char* source = head + (first + static_cast<int>(row)) * row_bytes + chunk * 16;
  constexpr unsigned kSteps = (kRows + kStep - 1) / kStep;
  constexpr int kUnroll = kSm75 ? 2 : static_cast<int>(kSteps);  // copies there take registers
#pragma unroll kUnroll
  for (unsigned i = 0; i < kSteps; ++i) {
    if (kRows % kStep != 0 && row + i * kStep >= kRows) break;
#pragma unroll
    for (unsigned c = 0; c < kChunks; c += kAcross) {
      const int valid_rows = static_cast<int>(chunk + c) * kPerChunk < columns ? rows - first : 0;
      ptx::copy_16(tile + Layout::offset(row + i * kStep, chunk + c), source + c * 16,
                   static_cast<int>(row + i * kStep) < valid_rows);
    }
    source += kStep * row_bytes;
  }
}

// Reads matrix operands of m16n8k16 out of a tile, which must start at a multiple of 128 bytes.
// Row and column are multiples of 16 and known at compile time after unrolling, so that an address
// is one exclusive or.
template <int kColumns>
class TileReader {
 public:
  // 16 rows of a left operand (row by k), or 16 k of a right one stored k by column, transposed.
  // `part` moves by 16 columns where warps share the columns of a tile, which then are read in
  // steps of 32.
  static DFA_DEVICE TileReader by_rows(unsigned tile, unsigned part = 0) {
    const unsigned lane = threadIdx.x % 32;
    return TileReader(tile, lane % 16, lane / 16 + 2 * part);
  }

  // 16 columns of a right operand that is stored column by k.
  static DFA_DEVICE TileReader by_columns(unsigned tile) {
    const unsigned lane = threadIdx.x % 32;
    return TileReader(tile, lane % 8 + lane / 16 * 8, lane / 8 % 2);
  }

  DFA_DEVICE void read(unsigned (&r)[4], unsigned row, unsigned column) const {
    ptx::ldmatrix(r, address(row, column));
  }
  DFA_DEVICE void read_trans(unsigned (&r)[4], unsigned row, unsigned column) const {
    ptx::ldmatrix_trans(r, address(row, column));
  }

 private:
  using Layout = Swizzle<kColumns>;

  DFA_DEVICE TileReader(unsigned tile, unsigned row, unsigned chunk)
      : lane_address_(tile + Layout::offset(row, chunk)) {}

  DFA_DEVICE unsigned address(unsigned row, unsigned column) const {
    const unsigned chunk = column / 8;
    const unsigned outside = chunk / Layout::kGroup * Layout::kGroup * 16;
    return (lane_address_ ^ (chunk % Layout::kGroup * 16)) + row * Layout::kRowBytes + outside;
  }

  unsigned lane_address_;
};

}  // namespace dfa
