#pragma once

#include "kernels/tile/product_fp32.cuh"

// The products of product.cuh for tf32: fp32 tiles, whose elements are rounded to 10 mantissa bits
// on their way into a product of 16 x 8 x 8.
namespace dfa {

// Every 8 columns of a sum are a left operand: element 2 i of the columns serves as k = i, element
// 2 i + 1 as k = i + 4, and rows of the right operand are taken in the same order.
template <int kRows, int kColumns>
struct Rounded<DType::tf32, kRows, kColumns> {
  using Type = LeftOperand<kRows, kColumns>;
  static constexpr int kColumnFragments = kColumns;
};

template <DType kElement, int kRows, int kColumns>
DFA_DEVICE void round_to_left(LeftOperand<kRows, kColumns>& left, const Sum<kRows, kColumns>& sum) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      left[m][n][0] = ptx::round_tf32(sum[m][n][0]);
      left[m][n][1] = ptx::round_tf32(sum[m][n][2]);
      left[m][n][2] = ptx::round_tf32(sum[m][n][1]);
      left[m][n][3] = ptx::round_tf32(sum[m][n][3]);
    }
  }
}

// Takes TileReader's place. Matrices of 8 x 8 16-bit elements are 8 x 4 of fp32, just what a lane
// holds of an operand whose k lies along the rows.
template <int kColumns>
class Tf32Reader {
 public:
  static DFA_DEVICE Tf32Reader by_rows(unsigned tile, unsigned part = 0) {
    return {TileReader<2 * kColumns>::by_rows(tile), tile, part};
  }
  static DFA_DEVICE Tf32Reader by_columns(unsigned tile) {
    return {TileReader<2 * kColumns>::by_columns(tile), tile, 0};
  }

  // 16 rows and 8 columns, rounded; likewise 16 columns of a right operand.
  DFA_DEVICE void read(unsigned (&r)[4], unsigned row, unsigned column) const {
    matrices_.read(r, row, 2 * column);
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = ptx::round_tf32(__uint_as_float(r[i]));
  }

  // Of a right operand stored k by column: this lane's column of eight from a known one, its row
  // 2 i (or 2 i + 1) of eight from a known one.
  DFA_DEVICE unsigned one(unsigned row, unsigned column, unsigned odd) const {
    const unsigned chunk = column / 4;
    const unsigned outside = chunk / Layout::kGroup * Layout::kGroup * 16;
    const unsigned lane = odd ? odd_ : even_;
    return ptx::round_tf32(ptx::load_shared_1((lane ^ (chunk % Layout::kGroup * 16)) +
                                              row * Layout::kRowBytes + outside));
  }

 private:
  using Layout = TileLayout<DType::fp32, kColumns>;

  // Of warps that share the columns, `part` moves by 16.
  DFA_DEVICE Tf32Reader(const TileReader<2 * kColumns>& matrices, unsigned tile, unsigned part)
      : matrices_(matrices) {
    const unsigned row = threadIdx.x % 4 * 2, column = threadIdx.x % 32 / 4;
    even_ = tile + Layout::offset(row, part * 4 + column / 4) + column % 4 * 4;
    odd_ = tile + Layout::offset(row + 1, part * 4 + column / 4) + column % 4 * 4;
  }

  TileReader<2 * kColumns> matrices_;
  unsigned even_, odd_;
};

template <int kColumns>
struct ReaderOf<DType::tf32, kColumns> {
  using Type = Tf32Reader<kColumns>;
};

// sum += left * right^T with both in shared memory, stored row by k and column by k.
template <DType kElement, int kRows, int kColumns, int kTileColumns>
DFA_DEVICE void multiply_rows(Sum<kRows, kColumns>& sum, const Tf32Reader<kTileColumns>& left,
                              const Tf32Reader<kTileColumns>& right) {
#pragma unroll
  for (unsigned k = 0; k < kTileColumns; k += 8) {
    unsigned a[kRows][4];
#pragma unroll
    for (int m = 0; m < kRows; ++m) left.read(a[m], m * 16, k);
#pragma unroll
    for (int n = 0; n < kColumns; n += 2) {
      unsigned b[4];
      right.read(b, n * 8, k);
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        ptx::mma<kElement>(sum[m][n], a[m], b[0], b[1]);
        if (n + 1 < kColumns) ptx::mma<kElement>(sum[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// sum += left * right; right is stored k by column.
template <DType kElement, int kSharing, int kRows, int kColumns, int kSteps, int kTileColumns>
DFA_DEVICE void multiply(Sum<kRows, kColumns>& sum, const LeftOperand<kRows, kSteps>& left,
                         const Tf32Reader<kTileColumns>& right) {
  static_assert(kTileColumns == kColumns * 8 * kSharing);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const unsigned column = static_cast<unsigned>(n / 2 * kSharing * 16 + n % 2 * 8);
      const unsigned b0 = right.one(static_cast<unsigned>(k) * 8, column, 0);
      const unsigned b1 = right.one(static_cast<unsigned>(k) * 8, column, 1);
#pragma unroll
      for (int m = 0; m < kRows; ++m) ptx::mma<kElement>(sum[m][n], left[m][k], b0, b1);
    }
  }
}

}  // namespace dfa
