#pragma once

#include "kernels/backward/sm90_dq.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/schedule/key_work_tile.cuh"

namespace dfa {

// Sums of dq that blocks add to as they come, cleared beside the tensor cores and rounded in the
// same grid, so that zeros need not go to memory and back. Those of a head are cleared by its own
// blocks or by those of a head so many before (zeroed_ahead), a tile at a time, whoever comes
// first; its blocks wait until all are. Pairs are told work tiles in the order of their indices and
// wait for lower ones only: none waits for ever.
//
// Those of packed sequences are rounded by a kernel behind. A block clears what is left of its own
// key head, then some of the one of the block so many ahead, and waits for no other block.
template <BackwardConfig kConfig>
struct Sm90DqZeros {
  using Dq = Sm90Dq<kConfig>;

  // Counters: tiles that somebody clears, and cleared ones. Those of all last heads by the heads
  // right before these.
  static DFA_DEVICE unsigned* taken(const KernelArgs& args, int head) {
    return args.dq_semaphores + head;
  }
  static DFA_DEVICE unsigned* zeroed(const KernelArgs& args, int head) {
    return args.dq_semaphores + args.b * args.hk + head;
  }
  static DFA_DEVICE unsigned tiles_of_head(const KernelArgs& args) {
    return static_cast<unsigned>(args.hq / args.hk * Dq::tiles(args));
  }
  static DFA_DEVICE void zero_tiles(const KernelArgs& args, const KeyWorkTile<>& work) {
    const int own = work.seq.batch * args.hk + work.head, ahead = args.zeroed_ahead;
#pragma unroll 1
    for (int head = own < ahead ? own : own + ahead; head < args.b * args.hk; head += ahead) {
      zero_tiles_of(args, head);
      if (ahead == 0 || (head == own + ahead && head < args.tail_heads)) return;
    }
  }
  static DFA_DEVICE void zero_tiles_of(const KernelArgs& args, int head) {
    while (true) {
      unsigned tile = 0;
      if (ptx::thread_index() % 32 == 0) tile = ptx::add_1(taken(args, head));
      tile = __shfl_sync(ptx::kWholeWarp, tile, 0);
      if (tile >= tiles_of_head(args)) return;
      zero_tile(args, static_cast<long long>(head) * tiles_of_head(args) + tile);
      __syncwarp();
      if (ptx::thread_index() % 32 == 0) ptx::add_release(zeroed(args, head));
    }
  }
  // Of packed sequences: tiles of all query heads of a block's key head, and a share of those of
  // the work tile so many ahead: twice what a block has of keys, as some come late.
  static constexpr unsigned kShare = 2 * kConfig.block_k / kConfig.block_q;

  static DFA_DEVICE void zero_packed_tiles(const KernelArgs& args, const KeyWorkTile<true>& own) {
    while (zero_share(args, own)) {
    }
    const unsigned ahead =
        ptx::block_index() / kConfig.cluster + static_cast<unsigned>(args.zeroed_ahead);
    if (!has_packed_key_work_tile(args, ahead)) return;
    zero_share(args, packed_key_work_tile<kConfig.cluster_keys()>(args, ahead));
  }
  // Of tiles that nobody has taken. Were there any?
  static DFA_DEVICE bool zero_share(const KernelArgs& args, const KeyWorkTile<true>& work) {
    const int unit = work.seq.batch * args.hk + work.head;
    unsigned tile = 0;
    if (ptx::thread_index() % 32 == 0) tile = ptx::add_some(taken(args, unit), kShare);
    tile = __shfl_sync(ptx::kWholeWarp, tile, 0);
    const auto all = static_cast<unsigned>(Dq::tiles(args, work.seq));
    if (tile >= all) return false;
#pragma unroll 1
    for (unsigned n = 0; n < kShare && tile < all; ++n, ++tile) zero_of_all_heads(args, work, tile);
    __syncwarp();
    if (ptx::thread_index() % 32 == 0) {
      ptx::add_release(zeroed(args, unit), tile % kShare == 0 ? kShare : tile % kShare);
    }
    return true;
  }
  static DFA_DEVICE void zero_of_all_heads(const KernelArgs& args, const KeyWorkTile<true>& work,
                                           unsigned tile) {
    const int heads = args.hq / args.hk, of_head = args.packed.padded_rows / kConfig.block_q;
    unsigned index = Dq::index(args, {work.seq, work.head * heads}, static_cast<int>(tile));
#pragma unroll 1
    for (int head = 0; head < heads; ++head, index += of_head) zero_tile(args, index);
  }
  static DFA_DEVICE void wait_for_packed_tiles(const KernelArgs& args,
                                               const KeyWorkTile<true>& work) {
    const auto all = static_cast<unsigned>(Dq::tiles(args, work.seq));
    const unsigned* const counted = zeroed(args, work.seq.batch * args.hk + work.head);
    while (ptx::load_acquire(counted) != all) __nanosleep(32);
  }

  static DFA_DEVICE void zero_tile(const KernelArgs& args, long long index) {
    auto* sums = reinterpret_cast<uint4*>(args.dq_sums) + index * (Dq::kTileFloats / 4) +
                 ptx::thread_index() % 32;
#pragma unroll 4
    for (int i = 0; i < Dq::kTileFloats / 128; ++i) sums[32 * i] = make_uint4(0, 0, 0, 0);
  }
  static DFA_DEVICE void wait_for_tiles(const KernelArgs& args, const KeyWorkTile<>& work) {
    const int head = work.seq.batch * args.hk + work.head;
    while (ptx::load_acquire(zeroed(args, head)) != tiles_of_head(args)) __nanosleep(32);
  }
};

}  // namespace dfa
