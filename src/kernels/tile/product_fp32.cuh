#pragma once

#include "kernels/tile/product.cuh"

// The products of product.cuh in fp32 multiply-adds, on sums laid out alike, so that a kernel reads
// the same for every element. A left operand is a sum as it is.
namespace dfa {

// Takes TileReader's place for a tile of fp32, likewise: rows and columns known at compile time
// cost no registers.
template <int kColumns>
class Fp32Reader {
 public:
  static DFA_DEVICE Fp32Reader by_rows(unsigned tile, unsigned part = 0) { return {tile, part}; }
  static DFA_DEVICE Fp32Reader by_columns(unsigned tile) { return {tile, 0}; }

  // Four neighbours of any row; `column` is a multiple of 4.
  DFA_DEVICE float4 four(unsigned row, unsigned column) const {
    return ptx::load_shared_4(tile_ + Layout::offset(row, column / 4));
  }

  // This lane's two of a fragment's eight columns, in a row and from a column that are known.
  DFA_DEVICE float2 pair(unsigned row, unsigned column) const {
    const unsigned chunk = column / 4;
    const unsigned inside = (chunk % Layout::kGroup) ^ Layout::turn(row);
    const unsigned outside = chunk / Layout::kGroup * Layout::kGroup;
    return ptx::load_shared_2((lane_ ^ (inside * 16)) + row * Layout::kRowBytes + outside * 16);
  }

 private:
  using Layout = TileLayout<DType::fp32, kColumns>;

  // Of warps that share the columns, `part` moves by 16.
  DFA_DEVICE Fp32Reader(unsigned tile, unsigned part)
      : tile_(tile), lane_(tile + part * 64 + threadIdx.x % 4 * 8) {}

  unsigned tile_;
  unsigned lane_;
};

template <DType kElement, int kColumns>
struct ReaderOf {
  using Type = TileReader<kColumns>;
};

template <int kColumns>
struct ReaderOf<DType::fp32, kColumns> {
  using Type = Fp32Reader<kColumns>;
};

DFA_DEVICE float dot(const float4& a, const float4& b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// sum += left * right^T with both in shared memory, stored row by k and column by k.
template <DType kElement, int kRows, int kColumns, int kTileColumns>
DFA_DEVICE void multiply_rows(Sum<kRows, kColumns>& sum, const Fp32Reader<kTileColumns>& left,
                              const Fp32Reader<kTileColumns>& right) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll 2
  for (unsigned k = 0; k < kTileColumns; k += 4) {
    float4 a[kRows][2];
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        a[m][half] = left.four(static_cast<unsigned>(m * 16 + half * 8) + lane / 4, k);
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 b = right.four(static_cast<unsigned>(n * 8 + i) + lane % 4 * 2, k);
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
          sum[m][n][i] = dot(a[m][0], b, sum[m][n][i]);
          sum[m][n][2 + i] = dot(a[m][1], b, sum[m][n][2 + i]);
        }
      }
    }
  }
}

// sum += left * right; right is stored k by column. The four lanes of a row pass its left values
// around.
template <DType kElement, int kSharing, int kRows, int kColumns, int kSteps, int kTileColumns>
DFA_DEVICE void multiply(Sum<kRows, kColumns>& sum, const Sum<kRows, kSteps>& left,
                         const Fp32Reader<kTileColumns>& right) {
  static_assert(kTileColumns == kColumns * 8 * kSharing);
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < 8 * kSteps; ++k) {
    const int owner = static_cast<int>(lane / 4 * 4) + k % 8 / 2;
    float a[kRows][2];
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        a[m][half] = __shfl_sync(ptx::kWholeWarp, left[m][k / 8][2 * half + k % 2], owner);
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const float2 b = right.pair(static_cast<unsigned>(k),
                                  static_cast<unsigned>(n / 2 * kSharing * 16 + n % 2 * 8));
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          sum[m][n][2 * half] = fmaf(a[m][half], b.x, sum[m][n][2 * half]);
          sum[m][n][2 * half + 1] = fmaf(a[m][half], b.y, sum[m][n][2 * half + 1]);
        }
      }
    }
  }
}

// The counterpart of round_to_left: nothing is rounded.
template <DType kElement, int kRows, int kColumns>
DFA_DEVICE void round_to_left(Sum<kRows, kColumns>& left, const Sum<kRows, kColumns>& sum) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) left[m][n][i] = sum[m][n][i];
    }
  }
}

}  // namespace dfa
