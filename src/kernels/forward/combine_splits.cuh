#pragma once

#include "kernels/forward/sm90_args.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/schedule/split_kv.h"
#include "kernels/tile/tile.cuh"

// What splits of the keys left of a row (ForwardConfig::num_splits), joined by a warp as a tile of
// keys joins those before it, 32 pieces at a time:
//   m' = max(m, lse of a piece)    s' = s exp(m - m') + sum exp(lse of a piece - m')
//   o' = o exp(m - m') + sum exp(lse of a piece - m') (o of a piece);    o = o / s, lse = m + log s
// in an order that follows from the problem. A piece that no query of the row sees has lse = -inf
// and o = 0.
namespace dfa {

template <ForwardConfig kConfig>
__global__ void combine_splits(const __grid_constant__ Sm90ForwardArgs a) {
  constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  constexpr int kQueryRows = kConfig.query_rows();
  constexpr int kColumns = 4 * 32;  // of a warp at once
  constexpr int kParts = (kConfig.value_dim + kColumns - 1) / kColumns;
  ptx::griddepcontrol_wait();
  const KernelArgs& args = a.args;
  const SplitKv num_splits{a.partials.work_tiles, kConfig.num_splits};
  const int warp = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int work_tile = num_splits.whole() + warp / a.partials.rows, own = warp % a.partials.rows;
  if (work_tile >= num_splits.work_tiles) return;
  const int row = work_tile % a.partials.of_head * kConfig.work_tile_rows() + own,
            query = row / kQueryRows;
  if (query >= args.sq || row % kQueryRows >= kConfig.pack_gqa) return;
  const int first = num_splits.first_split(work_tile), last = num_splits.last_split(work_tile);

  float most = -ptx::infinity(), sum = 0, o[kParts][4] = {};
  for (int begin = first; begin <= last; begin += 32) {
    const int split = begin + lane < last ? begin + lane : last;
    const int at =
        num_splits.piece_of(split, work_tile) * a.partials.rows + own;  // of a lane's piece
    const float lse = begin + lane <= last ? a.partials.lse[at] * kLog2E : -ptx::infinity();
    float top = fmaxf(most, lse);
    for (int i = 16; i > 0; i /= 2) top = fmaxf(top, __shfl_xor_sync(ptx::kWholeWarp, top, i));
    if (top == -ptx::infinity()) continue;
    const float weight = ptx::exp2(lse - top), kept = ptx::exp2(most - top);
    float weights = weight;
    for (int i = 16; i > 0; i /= 2) weights += __shfl_xor_sync(ptx::kWholeWarp, weights, i);
    most = top;
    sum = fmaf(sum, kept, weights);
    for (auto& four : o) {
      for (float& x : four) x *= kept;
    }
    const int count = last - begin < 32 ? last - begin + 1 : 32;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float of_piece = __shfl_sync(ptx::kWholeWarp, weight, i);
      const float* from =
          a.partials.o + static_cast<long long>(__shfl_sync(ptx::kWholeWarp, at, i)) * args.d_v;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int column = part * kColumns + 4 * lane;
        if (column >= args.d_v) continue;
        const float4 four = *reinterpret_cast<const float4*>(from + column);
        o[part][0] = fmaf(of_piece, four.x, o[part][0]);
        o[part][1] = fmaf(of_piece, four.y, o[part][1]);
        o[part][2] = fmaf(of_piece, four.z, o[part][2]);
        o[part][3] = fmaf(of_piece, four.w, o[part][3]);
      }
    }
  }
  float of_keys = 1;  // what a sink leaves of their weights
  if constexpr (kConfig.sink) {
    const int of_tile = work_tile / a.partials.of_head % (args.hq / kConfig.pack_gqa);
    const int head = of_tile * kConfig.pack_gqa + row % kQueryRows;
    const float sink = args.logits.sinks[head] * kLog2E, top = fmaxf(most, sink);
    if (top != -ptx::infinity()) {
      of_keys = ptx::exp2(most - top);
      sum = fmaf(sum, of_keys, ptx::exp2(sink - top));
      most = top;
    }
  }
  const bool seen = most != -ptx::infinity();
  const float inverse = seen ? of_keys / sum : 0.f;

  const int packed = work_tile / a.partials.of_head, heads = args.hq / kConfig.pack_gqa;
  const int batch = packed / heads;
  const int head = packed % heads * kConfig.pack_gqa + row % kQueryRows;
  if (lane == 0 && args.lse != nullptr) {
    args.lse[(static_cast<long long>(batch) * args.hq + head) * args.sq + query] =
        seen ? (most + ptx::log2(sum)) * kLn2 : -ptx::infinity();
  }
  char* const to = static_cast<char*>(args.o) +
                   head_offset<kConfig.element>(args.o_strides, batch, head) +
                   bytes_of(kConfig.element) * query * args.o_strides.row;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int column = part * kColumns + 4 * lane;
    if (column >= args.d_v) continue;
    const float(&four)[4] = o[part];
    *reinterpret_cast<uint2*>(to + bytes_of(kConfig.element) * column) =
        make_uint2(ptx::pack<kConfig.element>(four[0] * inverse, four[1] * inverse),
                   ptx::pack<kConfig.element>(four[2] * inverse, four[3] * inverse));
  }
}

}  // namespace dfa
