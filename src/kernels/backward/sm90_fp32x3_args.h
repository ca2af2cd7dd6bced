#pragma once

#include "kernels/args.h"
#include "kernels/tensor_map.h"

namespace dfa {

// What sm90_fp32x3_delta is passed: maps of the planes of o and do, with plane * b + batch for the
// batch; boxes of 64 rows.
struct Sm90Fp32x3DeltaArgs {
  TensorMap o, d_o;
  KernelArgs args;  // of its pointers lse and those into the workspace are read
};

// What sm90_fp32x3_backward is passed, likewise; boxes of block_q rows of q and do, of block_k of k
// and v.
struct Sm90Fp32x3BackwardArgs {
  TensorMap q, k, v, d_o;
  KernelArgs args;  // dk, dv and those into the workspace
};

}  // namespace dfa
