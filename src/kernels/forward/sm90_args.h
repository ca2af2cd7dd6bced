#pragma once

#include "kernels/args.h"
#include "kernels/tensor_map.h"

namespace dfa {

// What sm90_forward is passed. Boxes: 64 columns by 64 rows of q, 16 of o, block_k of k and v.
struct Sm90ForwardArgs {
  TensorMap q, k, v, o;
  KernelArgs args;
  int section;     // heads whose items are dealt out together: their k and v fit the L2
  int late_first;  // late queries see more keys than early ones
};

}  // namespace dfa
