#pragma once

#include "kernels/forward/sm90_fp32x3_args.h"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/tile/panel.h"

namespace dfa {

// The planes of a tile into shared memory, one behind the other. Their map has plane * batches +
// batch for the batch.
template <int kRows, int kColumns>
DFA_DEVICE void load_planes(unsigned to, const TensorMap& map, unsigned barrier, int row, int head,
                            int batch, int batches) {
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
#pragma unroll
    for (int panel = 0; panel < panels(kColumns); ++panel) {
      ptx::load_box(to + plane * tile_bytes(kRows, kColumns) + panel * panel_bytes(kRows), map,
                    barrier, panel * kPanelColumns, row, head, plane * batches + batch);
    }
  }
}

}  // namespace dfa
