#pragma once

#include "kernels/ptx/wgmma.cuh"
#include "kernels/tile/panel.h"
#include "spec/gpu_tiles.h"

// Left operands of a warpgroup's products with tiles that are stored k by column: 64 rows, from its
// own registers or from a panel in shared memory.
namespace dfa {

template <DType kElement, int kSteps>
struct LeftInRegisters {
  const unsigned (&rows)[kSteps][4];

  template <int kFragments>
  DFA_DEVICE void multiply(float (&sums)[kFragments][4], int step, unsigned long long right) const {
    ptx::multiply_registers<kElement>(sums, rows[step], right);
  }
};

template <DType kElement>
struct LeftInPanel {
  Descriptor rows;

  static DFA_DEVICE LeftInPanel at(unsigned panel) { return {k_in_columns(panel)}; }
  template <int kFragments>
  DFA_DEVICE void multiply(float (&sums)[kFragments][4], int step, unsigned long long right) const {
    ptx::multiply_shared_columns<kElement>(sums, rows.moved(column_step<kGroupRows>(step)).bits(),
                                           right);
  }
};

// One group of products: sums += left times a tile of so many rows.
template <int kRows, typename Left, int kFragments>
DFA_DEVICE void multiply_left(float (&sums)[kFragments][4], const Left& left, unsigned tile) {
  const Descriptor right = k_in_rows<kRows>(tile);
  ptx::fence_products();
#pragma unroll
  for (int step = 0; step < kRows / 16; ++step) {
    left.multiply(sums, step, right.moved(row_step(step)).bits());
  }
  ptx::commit_products();
}

}  // namespace dfa
