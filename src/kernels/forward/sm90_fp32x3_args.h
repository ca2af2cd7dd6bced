#pragma once

#include "kernels/args.h"
#include "kernels/tensor_map.h"

namespace dfa {

// An fp32 tensor is the sum of three of bf16: 24 bits of mantissa in planes of 8, one behind the
// other, [plane][b][heads][rows][columns], dense.
inline constexpr int kPlanes = 3;
inline constexpr int kPlanesThreads = 256;
inline constexpr int kPlanesColumns = 8;  // of one row, that a thread splits

struct Fp32x3Tensor {
  const float* from;
  void* planes;
  KernelStrides strides;
  int heads, rows, columns;
  long long chunks;  // of kPlanesColumns columns
};

// What fp32x3_planes is passed: q, k, v.
struct Fp32x3PlanesArgs {
  Fp32x3Tensor tensors[3];
};

// What sm90_fp32x3_forward is passed: maps of the planes, with plane * b + batch for the batch.
struct Sm90Fp32x3Args {
  TensorMap q, k, v;
  KernelArgs args;  // of its pointers o and lse are read
};

}  // namespace dfa
