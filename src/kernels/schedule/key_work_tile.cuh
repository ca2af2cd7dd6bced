#pragma once

#include "kernels/args.h"
#include "kernels/device.h"
#include "kernels/schedule/seqlen_info.h"

// What thread blocks of the backward own that own keys and walk queries.
namespace dfa {

// Which rows of which key head; where work tiles are in parts (SplitQ), which part of the queries.
template <bool kVarlen = false>
struct KeyWorkTile {
  SeqlenInfo<kVarlen> seq;
  int head, key, part = 0;
};

// The key heads with which one alternates: the first, and how many.
struct AlternatingHeads {
  int first, count;
};
DFA_DEVICE AlternatingHeads alternating_heads(const KernelArgs& args, int head) {
  int first = head / args.head_swizzle * args.head_swizzle;
  if (first > args.tail_heads) first = args.tail_heads;
  const int left = args.b * args.hk - first;
  return {first, first == args.tail_heads ? left : args.head_swizzle};
}

// Early keys come first: under a causal mask the most queries see them. kAlternating: blocks of a
// head alternate with those of the next heads, a few at once where they wait for each other, and
// with those of all the last ones (select_tail_heads() in plan/schedule.h).
template <int kBlockK, bool kAlternating>
DFA_DEVICE KeyWorkTile<> key_work_tile(const KernelArgs& args, unsigned block) {
  const int tiles = (args.sk + kBlockK - 1) / kBlockK;
  int head = static_cast<int>(block) / tiles;
  int tile = static_cast<int>(block) % tiles;
  if constexpr (kAlternating) {
    const auto [first, heads] = alternating_heads(args, head);
    const int index = static_cast<int>(block) - first * tiles;
    head = first + index % heads;
    tile = index / heads;
  }
  return {{head / args.hk}, head % args.hk, tile * kBlockK};
}

// The same of packed sequences, whose list has them by sequence and with early keys first, too.
template <int kBlockK>
DFA_DEVICE KeyWorkTile<true> packed_key_work_tile(const KernelArgs& args, unsigned block) {
  const int index = static_cast<int>(block), heads = args.hk;
  const SequenceTile& tile = args.packed.k_tiles[index / heads];
  return {SeqlenInfo<true>::of(tile), index % heads, tile.tile * kBlockK};
}
DFA_DEVICE bool has_packed_key_work_tile(const KernelArgs& args, unsigned block) {
  return static_cast<int>(block) < args.packed.tile_counts[1] * args.hk;
}

// Which `block` has it of key_work_tile(), where work tiles alternate.
template <int kBlockK>
DFA_DEVICE int work_tile_index(const KernelArgs& args, const KeyWorkTile<>& work) {
  const int tiles = (args.sk + kBlockK - 1) / kBlockK;
  const int head = work.seq.batch * args.hk + work.head;
  const auto [first, heads] = alternating_heads(args, head);
  return first * tiles + work.key / kBlockK * heads + head - first;
}

}  // namespace dfa
