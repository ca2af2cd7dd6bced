#pragma once

#include "kernels/forward/fp32x3_planes.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/tile/panel.h"
#include "spec/gpu_tiles.h"

// Products of a warpgroup in fp32, on tensor cores that multiply bf16: operands are sums of three
// bf16 each, and of the nine products of their parts the six largest are made, the smallest first.
// What is left out is below 2^-24 of a product. In shared memory the parts of a tile are planes,
// one behind the other, each as panel.h has it.
//
// The tensor cores cut where they add, so that sums should be short: one of d products, or of the
// rows of a tile.
namespace dfa {

// Which parts are multiplied with each other.
struct PlanePair {
  int left, right;
};
inline constexpr int kPlanePairs = 6;

DFA_DEVICE constexpr PlanePair plane_pair(int i) {
  constexpr PlanePair kAll[kPlanePairs] = {{1, 1}, {0, 2}, {2, 0}, {0, 1}, {1, 0}, {0, 0}};
  return kAll[i];
}

// Queries times keys has the same bits as keys times queries, if their parts come in one order.
enum class Factors { as_they_are, swapped };

template <Factors kFactors>
DFA_DEVICE constexpr PlanePair plane_pair(int i) {
  const PlanePair pair = plane_pair(i);
  return kFactors == Factors::swapped ? PlanePair{pair.right, pair.left} : pair;
}

// Parts of sums, as left operands.
template <int kSteps>
using Fp32x3Operand = unsigned[kPlanes][kSteps][4];

template <int kSteps, int kFragments>
DFA_DEVICE void fp32x3_operand(Fp32x3Operand<kSteps>& parts_of, const float (&sum)[kFragments][4]) {
  static_assert(kFragments == 2 * kSteps);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* two = sum[2 * k + i / 2] + i % 2 * 2;
      unsigned parts[kPlanes];
      split(parts, two[0], two[1]);
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) parts_of[plane][k][i] = parts[plane];
    }
  }
}

template <int kColumns, Factors kFactors, int kPair, int kFragments>
DFA_DEVICE void queue_fp32x3_scores(float (&scores)[kFragments][4], unsigned left, unsigned right) {
  constexpr int kRows = 8 * kFragments;
  constexpr PlanePair kParts = plane_pair<kFactors>(kPair);
  const Descriptor a = k_in_columns(left + kParts.left * tile_bytes(kGroupRows, kColumns));
  const Descriptor b = k_in_columns(right + kParts.right * tile_bytes(kRows, kColumns));
  ptx::multiply_shared<DType::bf16, kPair == 0 ? 0 : 1>(scores, a.bits(), b.bits());
#pragma unroll
  for (int step = 1; step < kColumns / 16; ++step) {
    ptx::multiply_shared<DType::bf16, 1>(scores, a.moved(column_step<kGroupRows>(step)).bits(),
                                         b.moved(column_step<kRows>(step)).bits());
  }
  if constexpr (kPair + 1 < kPlanePairs) {
    queue_fp32x3_scores<kColumns, kFactors, kPair + 1>(scores, left, right);
  }
}

// 64 rows times as many as `scores` has columns, both row by k. Waits for the result.
template <int kColumns, Factors kFactors, int kFragments>
DFA_DEVICE void multiply_fp32x3_scores(float (&scores)[kFragments][4], unsigned left,
                                       unsigned right) {
  ptx::pin(scores);
  ptx::fence_products();
  queue_fp32x3_scores<kColumns, kFactors, 0>(scores, left, right);
  ptx::commit_products();
  ptx::wait_products<0>();
  ptx::pin(scores);
}

// sum = left^T right over 64 rows in k: 64 columns of the left, from `left` on, by as many as the
// sum has, which are kColumns. The left's planes are kLeftPlane bytes apart.
template <int kColumns, int kLeftPlane, int kPair, int kFragments>
DFA_DEVICE void queue_fp32x3_transposed(float (&sum)[kFragments][4], unsigned left,
                                        unsigned right) {
  static_assert(8 * kFragments == kColumns);
  const Descriptor a = k_in_rows<kGroupRows>(left + plane_pair(kPair).left * kLeftPlane);
  const Descriptor b =
      k_in_rows<kGroupRows>(right + plane_pair(kPair).right * tile_bytes(kGroupRows, kColumns));
  ptx::multiply_transposed<DType::bf16, kPair == 0 ? 0 : 1>(sum, a.bits(), b.bits());
#pragma unroll
  for (int step = 1; step < kGroupRows / 16; ++step) {
    ptx::multiply_transposed<DType::bf16, 1>(sum, a.moved(row_step(step)).bits(),
                                             b.moved(row_step(step)).bits());
  }
  if constexpr (kPair + 1 < kPlanePairs) {
    queue_fp32x3_transposed<kColumns, kLeftPlane, kPair + 1>(sum, left, right);
  }
}

// Weights of 64 rows times a tile that is stored k by column. Waits for the result.
template <int kFragments, int kSteps>
DFA_DEVICE void multiply_fp32x3_values(float (&sum)[kFragments][4], Fp32x3Operand<kSteps>& weights,
                                       unsigned right) {
  constexpr int kRows = 16 * kSteps, kColumns = 8 * kFragments;
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[n][i] = 0;
  }
  ptx::pin(sum);
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) ptx::pin(weights[plane]);
  ptx::fence_products();
#pragma unroll
  for (int i = 0; i < kPlanePairs; ++i) {
    const Descriptor b =
        k_in_rows<kRows>(right + plane_pair(i).right * tile_bytes(kRows, kColumns));
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::multiply_registers<DType::bf16>(sum, weights[plane_pair(i).left][step],
                                           b.moved(row_step(step)).bits());
    }
  }
  ptx::commit_products();
  ptx::wait_products<0>();
  ptx::pin(sum);
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) ptx::pin(weights[plane]);
}

}  // namespace dfa
