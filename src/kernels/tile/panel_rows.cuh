#pragma once

#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/tile/panel.h"

namespace dfa {

// A warp's 16 rows, from `first` on, of a tile of kRows in panels: left operands as they lie in
// registers, the k-th 16 columns. kStride: from one panel to the next.
template <int kStride>
DFA_DEVICE void store_columns(unsigned tile, int first, int k, const unsigned (&columns)[4],
                              unsigned lane) {
  const unsigned row = static_cast<unsigned>(first) + lane % 16;
  const unsigned row_start = tile + row * kPanelRowBytes;
  const unsigned chunk = 2 * static_cast<unsigned>(k) % 8 + lane / 16;
  ptx::store_matrices(row_start + k / 4 * kStride + ((chunk ^ row % 8) << 4), columns);
}

// Likewise all of them.
template <int kRows, int kStride = panel_bytes(kRows), int kColumnSteps>
DFA_DEVICE void store_rows(unsigned tile, int first, const unsigned (&rows)[kColumnSteps][4],
                           unsigned lane = ptx::thread_index() % 32) {
#pragma unroll
  for (int k = 0; k < kColumnSteps; ++k) store_columns<kStride>(tile, first, k, rows[k], lane);
}

// The same from a tile, kColumns of a panel being used, into registers.
template <int kRows, int kColumns = kPanelColumns, int kColumnSteps>
DFA_DEVICE void load_rows(unsigned tile, int first, unsigned (&rows)[kColumnSteps][4],
                          unsigned lane = ptx::thread_index() % 32) {
  const unsigned row = static_cast<unsigned>(first) + lane % 16;
  const unsigned row_start = tile + row * kPanelRowBytes;
#pragma unroll
  for (int k = 0; k < kColumnSteps; ++k) {
    constexpr int kSteps = kColumns / 16;
    const unsigned chunk = 2 * (k % kSteps) + lane / 16;
    ptx::ldmatrix(rows[k], row_start + k / kSteps * panel_bytes(kRows) + ((chunk ^ row % 8) << 4));
  }
}

}  // namespace dfa
