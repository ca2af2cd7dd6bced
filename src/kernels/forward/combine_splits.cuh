#pragma once

#include "kernels/forward/combined_row.cuh"
#include "kernels/forward/sm90_args.h"
#include "kernels/ptx/order.cuh"
#include "kernels/schedule/split_kv.h"

// What splits of the keys left of a row (ForwardConfig::num_splits), joined by a warp
// (CombinedRow) in an order that follows from the problem.
namespace dfa {

template <ForwardConfig kConfig>
__global__ void combine_splits(const __grid_constant__ Sm90ForwardArgs a) {
  constexpr int kQueryRows = kConfig.query_rows();
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

  CombinedRow<kConfig.element, kConfig.value_dim> combined;
  combined.join(a, lane, first, last, [&](int split) {
    return num_splits.piece_of(split, work_tile) * a.partials.rows + own;
  });
  if constexpr (kConfig.sink) {
    const int of_tile = work_tile / a.partials.of_head % (args.hq / kConfig.pack_gqa);
    combined.add_sink(args.logits.sinks[of_tile * kConfig.pack_gqa + row % kQueryRows]);
  }

  const int packed = work_tile / a.partials.of_head, heads = args.hq / kConfig.pack_gqa;
  const int batch = packed / heads;
  const int head = packed % heads * kConfig.pack_gqa + row % kQueryRows;
  if (lane == 0 && args.lse != nullptr) {
    args.lse[(static_cast<long long>(batch) * args.hq + head) * args.sq + query] = combined.lse();
  }
  combined.store(static_cast<char*>(args.o) +
                     head_offset<kConfig.element>(args.o_strides, batch, head) +
                     bytes_of(kConfig.element) * query * args.o_strides.row,
                 args.d_v, lane);
}

}  // namespace dfa
