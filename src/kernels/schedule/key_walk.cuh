#pragma once

#include "kernels/args.h"
#include "kernels/tile/tile.cuh"

// What thread blocks that own queries and walk keys have in common: the forward, and dq.
namespace dfa {

// Which rows of which head a thread block owns.
struct QueryWork {
  int batch, head, kv_head, query;
};

// Late queries come first: under a causal mask they see the most keys, and the short blocks fill
// the gaps at the end.
template <int kBlockQ>
DFA_DEVICE QueryWork query_work(const KernelArgs& args, unsigned block) {
  const int tiles = (args.sq + kBlockQ - 1) / kBlockQ;
  const int index = static_cast<int>(block);
  const int head = index / tiles;
  const int tile = tiles - 1 - index % tiles;
  return {head / args.hq, head % args.hq, head % args.hq / (args.hq / args.hk), tile * kBlockQ};
}

// A tile of k, then of v, in shared memory.
template <DType kElement, int kBlockK, int kHeadDim, int kValueDim>
struct KeyTile {
  static constexpr int kKBytes = bytes_of(kElement) * kBlockK * kHeadDim;
  static constexpr int kBytes = kKBytes + bytes_of(kElement) * kBlockK * kValueDim;
  static_assert(kKBytes % 128 == 0 && kBytes % 128 == 0);

  template <int kThreads>
  static DFA_DEVICE void load(const KernelArgs& args, QueryWork work, int tile, unsigned to) {
    // Addresses are made anew for every tile: across the loop they would take four registers.
    asm volatile("" : "+r"(work.batch), "+r"(work.kv_head));
    const char* k = static_cast<const char*>(args.k) +
                    head_offset<kElement>(args.k_strides, work.batch, work.kv_head);
    const char* v = static_cast<const char*>(args.v) +
                    head_offset<kElement>(args.v_strides, work.batch, work.kv_head);
    const int first = tile * kBlockK;
    load_tile<kElement, kBlockK, kHeadDim, kThreads>(to, k, args.k_strides.row, first, args.sk,
                                                     args.d);
    load_tile<kElement, kBlockK, kValueDim, kThreads>(to + kKBytes, v, args.v_strides.row, first,
                                                      args.sk, args.d_v);
  }
};

}  // namespace dfa
