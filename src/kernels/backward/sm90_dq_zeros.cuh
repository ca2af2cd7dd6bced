#pragma once

#include "kernels/backward/sm90_dq.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/schedule/key_work.cuh"

namespace dfa {

// Sums of dq that blocks of a later head add to as they come (BackwardConfig::zeroes_dq): zeroed
// beside the tensor cores, so that zeros need not go to memory and back. What the first
// args.zeroed_heads key heads add to is zero before the grid begins. Of each other head the blocks
// that own keys of the head so many before it zero a part each, and count; its own blocks wait
// until all have. Blocks start in the order of their indices, or where pairs stay are told works in
// that of theirs, and wait for lower ones only: none waits for ever.
template <BackwardConfig kConfig>
struct Sm90DqZeros {
  using Dq = Sm90Dq<kConfig>;

  static DFA_DEVICE unsigned* counter(const KernelArgs& args, int head) {
    return args.turns + head;
  }
  // Blocks that own keys of a head.
  static DFA_DEVICE unsigned parts(const KernelArgs& args) {
    return static_cast<unsigned>((args.sk + kConfig.turn_keys() - 1) / kConfig.turn_keys()) *
           kConfig.cluster;
  }

  // Of a warp of every block. block(): its number, of all that own keys, asked for anew at each use
  // as its register is wanted elsewhere.
  template <typename Block>
  static DFA_DEVICE void zero_part(const KernelArgs& args, const Block& block) {
    const int head = static_cast<int>(block() / parts(args)) + args.zeroed_heads;
    if (head >= args.b * args.hk) return;
    const unsigned group = static_cast<unsigned>(args.hq / args.hk);
    // In 16 bytes.
    const unsigned all = group * static_cast<unsigned>(Dq::tiles(args)) * (Dq::kTileFloats / 4);
    const unsigned most = (all + parts(args) - 1) / parts(args);
    const unsigned first = block() % parts(args) * most;
    const unsigned end = first + most < all ? first + most : all;
    auto* const sums = reinterpret_cast<uint4*>(args.dq_sums) + static_cast<long long>(head) * all;
#pragma unroll 1
    for (unsigned at = first + ptx::thread_index() % 32; at < end; at += 32) {
      sums[at] = make_uint4(0, 0, 0, 0);
    }
    __syncwarp();
    if (ptx::thread_index() % 32 == 0) ptx::add_release(counter(args, head));
  }

  // Where pairs stay: this block's number in a grid in which they do not.
  static DFA_DEVICE unsigned block_of(const KernelArgs& args, const KeyWork& of_turn) {
    return (of_turn.batch * args.hk + of_turn.head) * parts(args) +
           of_turn.key / kConfig.turn_keys() * kConfig.cluster +
           ptx::block_index() % kConfig.cluster;
  }

  // Where sums are rounded in the same grid too (rounds_dq): those of a head by its own blocks or
  // those of a head so many before (zeroed_ahead), a tile at a time, whoever comes first. Counters:
  // tiles that somebody zeroes, and zeroed ones. Those of all last heads by the heads right before
  // these.
  static DFA_DEVICE unsigned* taken(const KernelArgs& args, int head) { return args.turns + head; }
  static DFA_DEVICE unsigned* zeroed(const KernelArgs& args, int head) {
    return args.turns + args.b * args.hk + head;
  }
  static DFA_DEVICE unsigned tiles_of_head(const KernelArgs& args) {
    return static_cast<unsigned>(args.hq / args.hk * Dq::tiles(args));
  }
  static DFA_DEVICE void zero_tiles(const KernelArgs& args, const KeyWork& work) {
    const int own = work.batch * args.hk + work.head, ahead = args.zeroed_ahead;
#pragma unroll 1
    for (int head = own < ahead ? own : own + ahead; head < args.b * args.hk; head += ahead) {
      zero_tiles_of(args, head);
      if (ahead == 0 || (head == own + ahead && head < args.last_heads)) return;
    }
  }
  static DFA_DEVICE void zero_tiles_of(const KernelArgs& args, int head) {
    while (true) {
      unsigned tile = 0;
      if (ptx::thread_index() % 32 == 0) tile = ptx::add_1(taken(args, head));
      tile = __shfl_sync(ptx::kWholeWarp, tile, 0);
      if (tile >= tiles_of_head(args)) return;
      auto* sums =
          reinterpret_cast<uint4*>(args.dq_sums) +
          (static_cast<long long>(head) * tiles_of_head(args) + tile) * (Dq::kTileFloats / 4) +
          ptx::thread_index() % 32;
#pragma unroll 4
      for (int i = 0; i < Dq::kTileFloats / 128; ++i) sums[32 * i] = make_uint4(0, 0, 0, 0);
      __syncwarp();
      if (ptx::thread_index() % 32 == 0) ptx::add_release(zeroed(args, head));
    }
  }
  static DFA_DEVICE void wait_for_tiles(const KernelArgs& args, const KeyWork& work) {
    const int head = work.batch * args.hk + work.head;
    while (ptx::load_acquire(zeroed(args, head)) != tiles_of_head(args)) __nanosleep(32);
  }

  // Until all sums of a block's head are zero.
  static DFA_DEVICE void wait(const KernelArgs& args, const KeyWork& work) {
    const int head = work.batch * args.hk + work.head;
    if (head < args.zeroed_heads) return;
    while (ptx::load_acquire(counter(args, head)) != parts(args)) __nanosleep(32);
  }
};

}  // namespace dfa
