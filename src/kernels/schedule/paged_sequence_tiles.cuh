#pragma once

#include "kernels/schedule/sequence_tiles.cuh"

namespace dfa {

// sequence_tiles of keys in pages.
__global__ void __launch_bounds__(kSequenceThreads)
    paged_sequence_tiles(const __grid_constant__ KernelArgs args) {
  list_sequence_tiles<true>(args);
}

}  // namespace dfa
