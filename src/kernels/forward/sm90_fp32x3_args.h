#pragma once

#include "kernels/args.h"
#include "kernels/tensor_map.h"

namespace dfa {

// An fp32 tensor is the sum of three of bf16: 24 bits of mantissa in planes of 8, one behind the
// other, [plane][b][heads][rows][columns], dense.
inline constexpr int kPlanes = 3;
inline constexpr int kSplitThreads = 256;
inline constexpr int kSplitColumns = 8;  // of one row, that a thread splits

struct SplitTensor {
  const float* from;
  void* planes;
  KernelStrides strides;
  int heads, rows, columns;
  long long chunks;  // of kSplitColumns columns
};

// What split_planes is passed: q, k, v.
struct SplitArgs {
  SplitTensor tensors[3];
};

// What sm90_fp32x3_forward is passed: maps of the planes, with plane * b + batch for the batch.
struct Sm90Fp32x3Args {
  TensorMap q, k, v;
  KernelArgs args;  // of its pointers o and lse are read
};

}  // namespace dfa
