#pragma once

#include "kernels/args.h"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/softmax/tile_mask.h"
#include "spec/backward_config.h"

// Who may add to dq when. Some tiles of queries together, dq_semaphore_rows() of them, have a
// counter; the block, or pair of blocks, with key tile n adds its shares when the n before it have,
// so the order of the sum is fixed and its bits are always the same. Blocks start in the order of
// their indices and wait for lower ones only: none waits for ever.
namespace dfa {

template <BackwardConfig kConfig>
struct DqSemaphore {
  static constexpr int kSemaphoreRows = kConfig.dq_semaphore_rows();
  static constexpr int kSemaphoreTiles = kSemaphoreRows / kConfig.block_q;

  static DFA_DEVICE int tiles(const KernelArgs& args) {
    return (args.sq + kConfig.block_q - 1) / kConfig.block_q;
  }
  static DFA_DEVICE int tiles(const KernelArgs& args, const SeqlenInfo<kConfig.varlen>& seq) {
    return (seq.sq(args) + kConfig.block_q - 1) / kConfig.block_q;
  }

  struct Head {
    SeqlenInfo<kConfig.varlen> seq;
    int head;
  };

  // Which of the tiles of all heads this one is.
  static DFA_DEVICE unsigned index(const KernelArgs& args, Head head, int tile) {
    return static_cast<unsigned>(head.seq.template tiles_before<kConfig.block_q>(args, head.head) +
                                 tile);
  }

  // How many blocks add to rows of a tile before that of the keys from `key` on.
  static DFA_DEVICE unsigned blocks_before(const KernelArgs& args, const Head& head, int row,
                                           int rows, int key) {
    const TileRange seen =
        key_tiles(TileMask::of(args, head.seq), row, rows, kConfig.cluster_keys());
    return static_cast<unsigned>(key / kConfig.cluster_keys() - seen.begin);
  }

  // The counter of the kSemaphoreRows rows that a tile is of (the first of dq_semaphores_of_tile(),
  // or of a wide pair this block's), and what it holds when a block may add.
  static DFA_DEVICE unsigned* counter(const KernelArgs& args, Head head, int tile) {
    const int at =
        head.seq.template tiles_before<kSemaphoreRows>(args, head.head) + tile / kSemaphoreTiles;
    if constexpr (kConfig.dq_semaphores_of_tile() > 1) {
      int own = 0;
      if constexpr (kConfig.sm90_wide_pair()) own = static_cast<int>(ptx::cluster_rank() % 2);
      return args.dq_semaphores + at * kConfig.dq_semaphores_of_tile() + own;
    }
    return args.dq_semaphores + at;
  }
  static DFA_DEVICE unsigned before(const KernelArgs& args, const Head& head, int tile, int key) {
    return blocks_before(args, head, tile / kSemaphoreTiles * kSemaphoreRows, kSemaphoreRows, key);
  }

  // Is the tile the first of its counter's rows that a block comes by, walking down from `end`, or
  // the last down to `begin`?
  static DFA_DEVICE bool acquires_at(int tile, int end) {
    return tile + 1 == end || (tile + 1) % kSemaphoreTiles == 0;
  }
  static DFA_DEVICE bool releases_at(int tile, int begin) {
    return tile == begin || tile % kSemaphoreTiles == 0;
  }

  static DFA_DEVICE void acquire(const KernelArgs& args, Head head, int tile, int key) {
    const unsigned* counted = counter(args, head, tile);
    const unsigned own = before(args, head, tile, key);
    while (ptx::load_acquire(counted) != own) __nanosleep(32);
  }

  // Of sums as they come that are rounded in the same grid: how many blocks with keys of a key head
  // (of all) have added all they add; where work tiles are in parts, how many parts of theirs have.
  // Behind two counters of zeros for each.
  static DFA_DEVICE unsigned* ended(const KernelArgs& args, int key_head) {
    return args.dq_semaphores + 2 * args.b * args.hk + key_head;
  }

  // Until all that see rows of a tile have added to them. Not of dq_semaphores_of_tile() > 1.
  static DFA_DEVICE void wait_complete(const KernelArgs& args, Head head, int tile) {
    if constexpr (kConfig.dq_atomic()) {
      const unsigned* counted =
          ended(args, (head.seq.batch * args.hq + head.head) / (args.hq / args.hk));
      const int keys = (args.sk + kConfig.cluster_keys() - 1) / kConfig.cluster_keys();
      const int parts = kConfig.split_q ? args.parts.parts : 1;
      const unsigned blocks = static_cast<unsigned>(keys * kConfig.cluster * parts);
      while (ptx::load_acquire(counted) != blocks) __nanosleep(128);
      return;
    }
    const TileRange seen =
        key_tiles(TileMask::of(args, head.seq), tile / kSemaphoreTiles * kSemaphoreRows,
                  kSemaphoreRows, kConfig.cluster_keys());
    const unsigned all = static_cast<unsigned>(seen.end - seen.begin);
    const unsigned* counted = counter(args, head, tile);
    while (ptx::load_acquire(counted) != all) __nanosleep(128);
  }

  static DFA_DEVICE void release(const KernelArgs& args, Head head, int tile, int key) {
    ptx::store_release(counter(args, head, tile), before(args, head, tile, key) + 1);
  }
};

}  // namespace dfa
