#pragma once

#include "kernels/args.h"
#include "kernels/tensor_map.h"

namespace dfa {

// What sm90_backward is passed.
struct Sm90BackwardArgs {
  TensorMap q, k, v, d_o, dk, dv;
  KernelArgs args;  // of its pointers only those into the workspace are read
};

// Rows of the boxes of 64 columns that the maps of dk and dv are for; block_q of q and d_o, block_k
// of k and v, or under a mask those of a warpgroup.
inline constexpr int kGradientBoxRows = 16;

}  // namespace dfa
