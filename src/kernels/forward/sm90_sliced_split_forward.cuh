#pragma once

#include "kernels/forward/sm90_sliced_forward.cuh"
#include "kernels/forward/sm90_split_args.h"

// Hopper's forward of heads above 256 columns over few queries of packed sequences, whose keys may
// lie in pages: sm90_sliced_forward of pieces that split_sequence_tiles deals out by the lengths.
// Rows of a tile are queries by up to 64 heads of a key head. What splits leave is combined by
// combine_listed_splits.
namespace dfa {

template <ForwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_sliced_split_forward(const __grid_constant__ Sm90SplitForwardArgs a) {
  static_assert(kConfig.split_kv && kConfig.varlen && kConfig.num_splits == 0);
  run_sm90_forward<Sm90SlicedForward<kConfig>>(a);
}

}  // namespace dfa
