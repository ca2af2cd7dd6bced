#pragma once

#include "kernels/forward/sm90_fp32x3_args.h"
#include "kernels/ptx/arithmetic.cuh"

// fp32 as a sum of three bf16. The parts of a number overlap nowhere, so that they hold all of its
// 24 bits.
namespace dfa {

// The parts of two numbers, as operands have them.
DFA_DEVICE void split(unsigned (&parts)[kPlanes], float low, float high) {
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
    parts[plane] = ptx::pack<DType::bf16>(low, high);
    float low_part, high_part;
    ptx::unpack<DType::bf16>(parts[plane], low_part, high_part);
    low -= low_part;
    high -= high_part;
  }
}

// Eight columns of a row for each thread. Of infinity and NaN the later parts are NaN.
DFA_DEVICE void fp32x3_chunk(const Fp32x3Tensor& t, long long chunk) {
  const int across = t.columns / kPlanesColumns;
  const long long row = chunk / across;
  const int column = static_cast<int>(chunk % across) * kPlanesColumns;
  const long long head = row / t.rows;
  const float* from = t.from + head / t.heads * t.strides.batch + head % t.heads * t.strides.head +
                      row % t.rows * t.strides.row + column;
  const float4 first = *reinterpret_cast<const float4*>(from);
  const float4 second = *reinterpret_cast<const float4*>(from + 4);
  unsigned parts[4][kPlanes];
  split(parts[0], first.x, first.y);
  split(parts[1], first.z, first.w);
  split(parts[2], second.x, second.y);
  split(parts[3], second.z, second.w);
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
    static_cast<uint4*>(t.planes)[plane * t.chunks + chunk] =
        make_uint4(parts[0][plane], parts[1][plane], parts[2][plane], parts[3][plane]);
  }
}

// A template, as kernels are named by their instances.
template <DType kPart>
__global__ void __launch_bounds__(kPlanesThreads)
    fp32x3_planes(const __grid_constant__ Fp32x3PlanesArgs args) {
  long long chunk = static_cast<long long>(blockIdx.x) * kPlanesThreads + threadIdx.x;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const Fp32x3Tensor& t = args.tensors[i];
    if (chunk >= 0 && chunk < t.chunks) fp32x3_chunk(t, chunk);
    chunk -= t.chunks;
  }
}

}  // namespace dfa
