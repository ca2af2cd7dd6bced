#pragma once

#include "kernels/forward/sm90_args.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/schedule/key_shares.h"
#include "kernels/tile/tile.cuh"

// What shares of the keys left of a row (ForwardConfig::key_shares), joined by a warp:
//   lse = log sum exp(lse of a piece)        o = sum exp(lse of a piece - lse) * (o of a piece)
// in an order that follows from the problem. A piece that no query of the row sees has lse = -inf
// and o = 0.
namespace dfa {

template <ForwardConfig kConfig>
__global__ void join_shares(const __grid_constant__ Sm90ForwardArgs a) {
  constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  constexpr int kRows = kConfig.item_rows(), kQueryRows = kConfig.query_rows();
  ptx::follow_previous_grid();
  const KernelArgs& args = a.args;
  const KeyShares shares{a.pieces.items, kConfig.key_shares};
  const int warp = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int item = shares.whole() + warp / kRows;
  if (item >= shares.items) return;
  const int row = item % a.pieces.of_head * kRows + warp % kRows, query = row / kQueryRows;
  if (query >= args.sq || row % kQueryRows >= kConfig.packed_heads) return;
  const int first = shares.first_share(item), last = shares.last_share(item);
  const auto row_of = [&](int share) {
    return static_cast<long long>(shares.piece_of(share, item)) * a.pieces.rows + warp % kRows;
  };

  float most = -ptx::infinity(), sum = 0;
  for (int share = first + lane; share <= last; share += 32) {
    most = fmaxf(most, a.pieces.lse[row_of(share)]);
  }
  for (int i = 16; i > 0; i /= 2) {
    most = fmaxf(most, __shfl_xor_sync(ptx::kWholeWarp, most, i));
  }
  const bool seen = most != -ptx::infinity();
  const auto weight_of = [&](int share) {
    return seen ? ptx::exp2((a.pieces.lse[row_of(share)] - most) * kLog2E) : 0.f;
  };
  for (int share = first + lane; share <= last; share += 32) sum += weight_of(share);
  for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(ptx::kWholeWarp, sum, i);
  const float inverse = seen ? 1 / sum : 0.f;

  const int packed = item / a.pieces.of_head, heads = args.hq / kConfig.packed_heads;
  const int batch = packed / heads;
  const int head = packed % heads * kConfig.packed_heads + row % kQueryRows;
  if (lane == 0 && args.lse != nullptr) {
    args.lse[(static_cast<long long>(batch) * args.hq + head) * args.sq + query] =
        seen ? most + ptx::log2(sum) * kLn2 : -ptx::infinity();
  }
  char* const o = static_cast<char*>(args.o) +
                  head_offset<kConfig.element>(args.o_strides, batch, head) +
                  bytes_of(kConfig.element) * query * args.o_strides.row;
  for (int column = 2 * lane; column < args.d_v; column += 64) {
    float x = 0, y = 0;
#pragma unroll 4
    for (int share = first; share <= last; ++share) {
      const float weight = weight_of(share);
      const float2 two =
          *reinterpret_cast<const float2*>(a.pieces.o + row_of(share) * args.d_v + column);
      x = fmaf(weight, two.x, x);
      y = fmaf(weight, two.y, y);
    }
    *reinterpret_cast<unsigned*>(o + bytes_of(kConfig.element) * column) =
        ptx::pack<kConfig.element>(x * inverse, y * inverse);
  }
}

}  // namespace dfa
