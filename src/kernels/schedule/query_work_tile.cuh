#pragma once

#include "kernels/args.h"
#include "kernels/tile/paged_tile.cuh"
#include "kernels/tile/tile.cuh"

// What thread blocks that own queries and walk keys have in common: the forward, and dq.
namespace dfa {

// Which rows of which head a thread block owns.
template <bool kVarlen>
struct QueryWorkTile {
  SeqlenInfo<kVarlen> seq;
  int head, kv_head, query;
};

// Late queries come first: under a causal mask they see the most keys, and the short blocks fill
// the gaps at the end.
template <int kBlockQ, bool kVarlen>
DFA_DEVICE QueryWorkTile<kVarlen> query_work_tile(const KernelArgs& args, unsigned block) {
  const int index = static_cast<int>(block);
  if constexpr (kVarlen) {  // a list's tile may hold several of a kernel's
    const int parts = args.packed.q_tile_rows / kBlockQ, head = index % args.hq;
    const SequenceTile& tile = args.packed.q_tiles[index / args.hq / parts];
    const int part = parts - 1 - index / args.hq % parts;
    return {SeqlenInfo<true>::of(tile), head, head / (args.hq / args.hk),
            (tile.tile * parts + part) * kBlockQ};
  } else {
    const int tiles = (args.sq + kBlockQ - 1) / kBlockQ;
    const int head = index / tiles;
    const int tile = tiles - 1 - index % tiles;
    return {{head / args.hq}, head % args.hq, head % args.hq / (args.hq / args.hk), tile * kBlockQ};
  }
}

// Has a thread block of packed sequences anything to do? There are as many as there could be tiles.
template <int kBlockQ>
DFA_DEVICE bool has_query_work_tile(const KernelArgs& args, unsigned block) {
  const int tile = static_cast<int>(block) / args.hq / (args.packed.q_tile_rows / kBlockQ);
  return tile < args.packed.tile_counts[0];
}

// A tile of k, then of v, in shared memory. kPaged: they lie in pages.
template <DType kElement, int kBlockK, int kHeadDim, int kValueDim, bool kPaged = false>
struct KeyTile {
  static constexpr int kKBytes = bytes_of(kElement) * kBlockK * kHeadDim;
  static constexpr int kBytes = kKBytes + bytes_of(kElement) * kBlockK * kValueDim;
  static_assert(kKBytes % 128 == 0 && kBytes % 128 == 0);

  template <int kThreads, bool kVarlen>
  static DFA_DEVICE void load(const KernelArgs& args, QueryWorkTile<kVarlen> work, int tile,
                              unsigned to) {
    // Addresses are made anew for every tile: across the loop they would take four registers.
    work.seq.forget([](int& value) { asm volatile("" : "+r"(value)); });
    asm volatile("" : "+r"(work.kv_head));
    if constexpr (kPaged) return load_pages<kThreads>(args, work, tile, to);
    const char* k = static_cast<const char*>(args.k) +
                    k_head_offset<kElement>(args, args.k_strides, work.seq, work.kv_head);
    const char* v = static_cast<const char*>(args.v) +
                    k_head_offset<kElement>(args, args.v_strides, work.seq, work.kv_head);
    const int first = tile * kBlockK, rows = work.seq.sk(args);
    load_tile<kElement, kBlockK, kHeadDim, kThreads>(to, k, args.k_strides.row, first, rows,
                                                     args.d);
    load_tile<kElement, kBlockK, kValueDim, kThreads>(to + kKBytes, v, args.v_strides.row, first,
                                                      rows, args.d_v);
  }

  template <int kThreads>
  static DFA_DEVICE void load_pages(const KernelArgs& args, const QueryWorkTile<true>& work,
                                    int tile, unsigned to) {
    load_paged_tile<kElement, kBlockK, kHeadDim, kThreads>(
        to, args.k, args.k_strides, args, work.seq, work.kv_head, tile * kBlockK, args.d);
    load_paged_tile<kElement, kBlockK, kValueDim, kThreads>(to + kKBytes, args.v, args.v_strides,
                                                            args, work.seq, work.kv_head,
                                                            tile * kBlockK, args.d_v);
  }
};

}  // namespace dfa
