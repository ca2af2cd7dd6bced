#pragma once

#include "kernels/forward/sm90_args.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/tile/tile.cuh"

// What parts of the keys left of a row (ForwardConfig::key_splits), joined by a warp:
//   lse = log sum exp(lse of a part)        o = sum exp(lse of a part - lse) * (o of a part)
// in the order of the parts. A part that no query of the row sees has lse = -inf and o = 0.
namespace dfa {

template <DType kElement, int kParts>
__global__ void join_parts(const __grid_constant__ Sm90ForwardArgs a) {
  constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  static_assert(kParts <= 32);
  ptx::follow_previous_grid();
  const KernelArgs& args = a.args;
  const long long rows = static_cast<long long>(args.b) * args.hq * args.sq;
  const long long row = static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float own = lane < kParts ? a.part_lse[lane * rows + row] : -ptx::infinity();
  float most = own;
  for (int i = 16; i > 0; i /= 2) {
    most = fmaxf(most, __shfl_xor_sync(ptx::kWholeWarp, most, i));
  }
  const bool seen = most != -ptx::infinity();
  const float weight = seen ? ptx::exp2((own - most) * kLog2E) : 0.f;
  float sum = 0;
  for (int part = 0; part < kParts; ++part) {
    sum += __shfl_sync(ptx::kWholeWarp, weight, part);
  }
  const float inverse = seen ? 1 / sum : 0.f;
  if (lane == 0 && args.lse != nullptr) {
    args.lse[row] = seen ? most + ptx::log2(sum) * kLn2 : -ptx::infinity();
  }
  const int head = static_cast<int>(row / args.sq), query = static_cast<int>(row % args.sq);
  char* const o = static_cast<char*>(args.o) +
                  head_offset<kElement>(args.o_strides, head / args.hq, head % args.hq) +
                  bytes_of(kElement) * query * args.o_strides.row;
  for (int first = 0; first < args.d_v; first += 64) {  // two columns a lane
    const int column = first + 2 * lane;
    float x = 0, y = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float w = __shfl_sync(ptx::kWholeWarp, weight, part);
      if (column >= args.d_v) continue;
      const float2 two =
          *reinterpret_cast<const float2*>(a.part_o + (part * rows + row) * args.d_v + column);
      x = fmaf(w, two.x, x);
      y = fmaf(w, two.y, y);
    }
    if (column < args.d_v) {
      *reinterpret_cast<unsigned*>(o + bytes_of(kElement) * column) =
          ptx::pack<kElement>(x * inverse, y * inverse);
    }
  }
}

}  // namespace dfa
