#pragma once

#include "kernels/tile/e4m3_bits.h"
#include "kernels/tile/product.cuh"

// Products of fp16 with a right operand that lies in shared memory in e4m3 and is widened on its
// way. Tiles of 8-bit elements are read as ones of half as many columns of 16 bits, so that
// ldmatrix and the swizzle serve them: a 16-byte chunk has 16 columns, and a lane gets two
// neighbours where it would get one element. That moves columns about within 16 of them:
//   stored column by k   a lane has k = 4 t .. 4 t + 3 (t = lane % 4) where m16n8k16 wants
//                        2 t, 2 t + 1, 2 t + 8, 2 t + 9: the left operand is stored in the order of
//                        e4m3_slot(), and sums are the same
//   stored k by column   of the two fragments that 16 columns make, the first has the even columns
//                        and the second the odd ones
// Widened elements are to be multiplied by kE4m3Unit.
namespace dfa {

inline constexpr float kE4m3Unit = kConvertsE4m3 ? 1.f : kE4m3BitsUnit;

// Where the pair `pair` of neighbours in k lies among the pairs of the left operand's row.
DFA_HOST_DEVICE unsigned e4m3_slot(unsigned pair) {
  const unsigned in_group = pair % 8;
  return pair - in_group + in_group % 2 * 4 + in_group / 2;
}

// Four codes as bytes 0 and 1, and bytes 2 and 3.
template <bool kConverts = kConvertsE4m3>
DFA_DEVICE void widen_neighbours(unsigned codes, unsigned& first, unsigned& second) {
  if constexpr (kConverts) {
    ptx::unpack_e4m3(codes, first, second);
  } else {
    first = e4m3_bits_as_fp16(__byte_perm(codes, 0, 0x1100));
    second = e4m3_bits_as_fp16(__byte_perm(codes, 0, 0x3322));
  }
}

// The same as bytes 0 and 2, and bytes 1 and 3.
template <bool kConverts = kConvertsE4m3>
DFA_DEVICE void widen_alternate(unsigned codes, unsigned& even, unsigned& odd) {
  if constexpr (kConverts) {
    ptx::unpack_e4m3(__byte_perm(codes, 0, 0x3120), even, odd);
  } else {
    even = e4m3_bits_as_fp16(codes << 8);
    odd = e4m3_bits_as_fp16(codes);
  }
}

// Step k of 16 of a left operand: in registers, or in shared memory.
template <int kRows, int kSteps>
DFA_DEVICE void left_of_step(unsigned (&a)[kRows][4], const LeftOperand<kRows, kSteps>& left,
                             int k) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[m][i] = left[m][k][i];
  }
}
template <int kRows, int kTileColumns>
DFA_DEVICE void left_of_step(unsigned (&a)[kRows][4], const TileReader<kTileColumns>& left, int k) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) left.read(a[m], m * 16, k * 16);
}

// sum += left * right^T; right is stored column by k, of 2 kHalves elements.
template <int kRows, int kColumns, typename Left, int kHalves>
DFA_DEVICE void multiply_rows_e4m3(Sum<kRows, kColumns>& sum, const Left& left,
                                   const TileReader<kHalves>& right) {
#pragma unroll
  for (int k = 0; k < kHalves / 16; ++k) {
    unsigned a[2][kRows][4];
    left_of_step(a[0], left, 2 * k);
    left_of_step(a[1], left, 2 * k + 1);
#pragma unroll
    for (int n = 0; n < kColumns; n += 2) {
      unsigned codes[4];
      right.read(codes, n * 8, k * 16);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int of = 0; of < 2; ++of) {
          unsigned b[2];
          widen_neighbours(codes[2 * of + step], b[0], b[1]);
#pragma unroll
          for (int m = 0; m < kRows; ++m) {
            ptx::mma<DType::fp16>(sum[m][n + of], a[step][m], b[0], b[1]);
          }
        }
      }
    }
  }
}

// sum += left * right; right is stored k by column, of 2 kHalves elements.
template <int kRows, int kColumns, int kSteps, int kHalves>
DFA_DEVICE void multiply_e4m3(Sum<kRows, kColumns>& sum, const LeftOperand<kRows, kSteps>& left,
                              const TileReader<kHalves>& right) {
  static_assert(kHalves == kColumns * 4);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    unsigned a[kRows][4];
    left_of_step(a, left, k);
#pragma unroll
    for (int n = 0; n < kColumns; n += 4) {
      unsigned codes[4];
      right.read_trans(codes, k * 16, n * 4);
#pragma unroll
      for (int of = 0; of < 2; ++of) {
        unsigned even[2], odd[2];
        widen_alternate(codes[2 * of], even[0], odd[0]);
        widen_alternate(codes[2 * of + 1], even[1], odd[1]);
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
          ptx::mma<DType::fp16>(sum[m][n + 2 * of], a[m], even[0], even[1]);
          ptx::mma<DType::fp16>(sum[m][n + 2 * of + 1], a[m], odd[0], odd[1]);
        }
      }
    }
  }
}

}  // namespace dfa
