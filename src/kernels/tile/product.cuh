#pragma once

#include "kernels/ptx/arithmetic.cuh"
#include "kernels/tile/tile.cuh"

// Matrix products of one warp. A sum holds kRows x kColumns fragments of 16 x 8: lane i has columns
// 2 (i % 4) + {0, 1} of rows i / 4 (elements 0, 1) and i / 4 + 8 (elements 2, 3).
namespace dfa {

template <int kRows, int kColumns>
using Sum = float[kRows][kColumns][4];

// Left operands, 16 x 16 each.
template <int kRows, int kSteps>
using LeftOperand = unsigned[kRows][kSteps][4];

// What a sum becomes as a left operand: rounded, two columns of fragments in one; fp32 stays.
template <DType kElement, int kRows, int kColumns>
struct Rounded {
  using Type = LeftOperand<kRows, kColumns / 2>;
  static constexpr int kColumnFragments = kColumns / 2;
};

template <int kRows, int kColumns>
struct Rounded<DType::fp32, kRows, kColumns> {
  using Type = Sum<kRows, kColumns>;
  static constexpr int kColumnFragments = kColumns;
};

template <int kRows, int kColumns>
DFA_DEVICE void clear(Sum<kRows, kColumns>& sum) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][n][i] = 0;
    }
  }
}

template <int kRows, int kSteps, int kTileColumns>
DFA_DEVICE void read_left(LeftOperand<kRows, kSteps>& left, const TileReader<kTileColumns>& tile) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) tile.read(left[m][k], m * 16, k * 16);
  }
}

// sum += left * right^T, one step of 16 in k; right is stored column by k.
template <DType kElement, int kRows, int kColumns, int kTileColumns>
DFA_DEVICE void multiply_step(Sum<kRows, kColumns>& sum, const unsigned (&left)[kRows][4],
                              const TileReader<kTileColumns>& right, int k) {
#pragma unroll
  for (int n = 0; n < kColumns; n += 2) {
    unsigned b[4];
    right.read(b, n * 8, k * 16);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      ptx::mma<kElement>(sum[m][n], left[m], b[0], b[1]);
      ptx::mma<kElement>(sum[m][n + 1], left[m], b[2], b[3]);
    }
  }
}

// sum += left * right^T with both in shared memory, the left stored row by k.
template <DType kElement, int kRows, int kColumns, int kLeftColumns, int kRightColumns>
DFA_DEVICE void multiply_rows(Sum<kRows, kColumns>& sum, const TileReader<kLeftColumns>& left,
                              const TileReader<kRightColumns>& right) {
  static_assert(kLeftColumns == kRightColumns);
#pragma unroll
  for (int k = 0; k < kLeftColumns / 16; ++k) {
    unsigned a[kRows][4];
#pragma unroll
    for (int m = 0; m < kRows; ++m) left.read(a[m], m * 16, k * 16);
    multiply_step<kElement>(sum, a, right, k);
  }
}

// The same with the left operand in registers.
template <DType kElement, int kRows, int kColumns, int kSteps, int kRightColumns>
DFA_DEVICE void multiply_rows(Sum<kRows, kColumns>& sum, const LeftOperand<kRows, kSteps>& left,
                              const TileReader<kRightColumns>& right) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    unsigned a[kRows][4];
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m][i] = left[m][k][i];
    }
    multiply_step<kElement>(sum, a, right, k);
  }
}

// A sum rounded to the element type is a left operand: the layouts agree.
template <DType kElement, int kRows, int kColumns>
DFA_DEVICE void round_to_left(LeftOperand<kRows, kColumns / 2>& left,
                              const Sum<kRows, kColumns>& sum) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int k = 0; k < kColumns / 2; ++k) {
      left[m][k][0] = ptx::pack<kElement>(sum[m][2 * k][0], sum[m][2 * k][1]);
      left[m][k][1] = ptx::pack<kElement>(sum[m][2 * k][2], sum[m][2 * k][3]);
      left[m][k][2] = ptx::pack<kElement>(sum[m][2 * k + 1][0], sum[m][2 * k + 1][1]);
      left[m][k][3] = ptx::pack<kElement>(sum[m][2 * k + 1][2], sum[m][2 * k + 1][3]);
    }
  }
}

// sum += left * right, one step of 16 in k; right is stored k by column. With kSharing warps for a
// tile's columns, the sum has every kSharing-th 16 of them.
template <DType kElement, int kSharing, int kRows, int kColumns, int kTileColumns>
DFA_DEVICE void multiply_columns_step(Sum<kRows, kColumns>& sum, const unsigned (&left)[kRows][4],
                                      const TileReader<kTileColumns>& right, unsigned k) {
  static_assert(kTileColumns == kColumns * 8 * kSharing);
#pragma unroll
  for (int n = 0; n < kColumns; n += 2) {
    unsigned b[4];
    right.read_trans(b, k * 16, static_cast<unsigned>(n) * 8 * kSharing);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      ptx::mma<kElement>(sum[m][n], left[m], b[0], b[1]);
      ptx::mma<kElement>(sum[m][n + 1], left[m], b[2], b[3]);
    }
  }
}

// The same over all of k.
template <DType kElement, int kSharing, int kRows, int kColumns, int kSteps, int kTileColumns>
DFA_DEVICE void multiply(Sum<kRows, kColumns>& sum, const LeftOperand<kRows, kSteps>& left,
                         const TileReader<kTileColumns>& right) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    unsigned a[kRows][4];
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m][i] = left[m][k][i];
    }
    multiply_columns_step<kElement, kSharing>(sum, a, right, static_cast<unsigned>(k));
  }
}

}  // namespace dfa
