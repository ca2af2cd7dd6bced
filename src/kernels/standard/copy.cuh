#pragma once

#include "kernels/standard/score_row.cuh"

// Brings a tensor into another memory layout, where products cannot read or write the caller's. In
// tf32 the copy is rounded, for the tensor cores would cut what they are given.
namespace dfa {

template <DType kElement>
__global__ void standard_copy(const __grid_constant__ CopyArgs args) {
  const long long index =
      static_cast<long long>(blockIdx.x) * (kCopyThreads / 32) + threadIdx.x / 32;
  if (index >= args.rows) return;
  const long long head = index / args.s;
  const long long batch = head / args.heads;
  const auto start = [&](const KernelStrides& strides) {
    return batch * strides.batch + head % args.heads * strides.head + index % args.s * strides.row;
  };
  const long long from = start(args.from_strides), to = start(args.to_strides);
  for (int x = static_cast<int>(threadIdx.x % 32); x < args.d; x += 32) {
    if constexpr (bytes_of(kElement) == 2) {
      static_cast<unsigned short*>(args.to)[to + x] =
          static_cast<const unsigned short*>(args.from)[from + x];
    } else {
      const float value = static_cast<const float*>(args.from)[from + x];
      static_cast<float*>(args.to)[to + x] = kElement == DType::tf32 ? round_to_tf32(value) : value;
    }
  }
}

}  // namespace dfa
