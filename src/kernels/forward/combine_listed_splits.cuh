#pragma once

#include "kernels/forward/combined_row.cuh"
#include "kernels/forward/sm90_split_args.h"
#include "kernels/ptx/order.cuh"

// What splits of packed sequences left of a row (sm90_sliced_split_forward), joined by a warp
// (CombinedRow) in the order of the keys.
namespace dfa {

// Of a work of a head one block.
template <ForwardConfig kConfig>
__global__ void combine_listed_splits(const __grid_constant__ Sm90SplitForwardArgs a) {
  constexpr int kQueryRows = kConfig.query_rows(), kRows = kConfig.block_q;
  ptx::griddepcontrol_wait();
  const KernelArgs& args = a.args;
  const int warps = static_cast<int>(blockDim.x / 32);
  const int blocks_of_work = kRows / warps, work = static_cast<int>(blockIdx.x) / blocks_of_work;
  const int own =
      static_cast<int>(blockIdx.x) % blocks_of_work * warps + static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const unsigned word = a.splits.ended[work];
  if (word == 0) return;
  const SplitPiece& piece = a.piece_of(word);
  const SeqlenInfo<true> seq = SeqlenInfo<true>::of(piece.tile);
  const int query = (piece.tile.tile * kRows + own) / kQueryRows, of_head = own % kQueryRows;
  if (query >= seq.sq(args) || of_head >= kConfig.pack_gqa) return;
  const int packed = work % a.splits.heads, head = packed * kConfig.pack_gqa + of_head;

  CombinedRow<kConfig.element, kConfig.value_dim> combined;
  combined.join(a, lane, 0, piece.tile.splits - 1, [&](int split) {
    return (piece.part(split) * a.splits.heads + packed) * kRows + own;
  });
  if constexpr (kConfig.sink) combined.add_sink(args.logits.sinks[head]);
  if (lane == 0 && args.lse != nullptr) {
    args.lse[seq.lse_offset(args, head) + query] = combined.lse();
  }
  combined.store(
      static_cast<char*>(args.o) +
          bytes_of(kConfig.element) * (seq.q_offset(args, args.o_strides) +
                                       query * args.o_strides.row + head * args.o_strides.head),
      args.d_v, lane);
}

}  // namespace dfa
