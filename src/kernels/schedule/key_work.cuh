#pragma once

#include "kernels/args.h"
#include "kernels/device.h"

// What thread blocks of the backward own that own keys and walk queries.
namespace dfa {

// Which rows of which key head; where works are in parts (WorkParts), which part of the queries.
struct KeyWork {
  int batch, head, key, part = 0;
};

// Early keys come first: under a causal mask the most queries see them. Where blocks of a head
// wait for each other (kAlternating), they alternate with those of the next heads, a few at once.
template <int kBlockK, bool kAlternating>
DFA_DEVICE KeyWork key_work(const KernelArgs& args, unsigned block) {
  const int tiles = (args.sk + kBlockK - 1) / kBlockK;
  int head = static_cast<int>(block) / tiles;
  int tile = static_cast<int>(block) % tiles;
  if constexpr (kAlternating) {
    const int first = head / args.heads_at_once * args.heads_at_once;
    const int left = args.b * args.hk - first;
    const int heads = left < args.heads_at_once ? left : args.heads_at_once;
    const int index = static_cast<int>(block) - first * tiles;
    head = first + index % heads;
    tile = index / heads;
  }
  return {head / args.hk, head % args.hk, tile * kBlockK};
}

// Which `block` has it of key_work().
template <int kBlockK, bool kAlternating>
DFA_DEVICE int work_index(const KernelArgs& args, const KeyWork& work) {
  const int tiles = (args.sk + kBlockK - 1) / kBlockK;
  const int head = work.batch * args.hk + work.head;
  if constexpr (!kAlternating) return head * tiles + work.key / kBlockK;
  const int first = head / args.heads_at_once * args.heads_at_once;
  const int left = args.b * args.hk - first;
  const int heads = left < args.heads_at_once ? left : args.heads_at_once;
  return first * tiles + work.key / kBlockK * heads + head - first;
}

}  // namespace dfa
