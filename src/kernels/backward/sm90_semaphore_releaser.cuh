#pragma once

#include "kernels/backward/sm90_dq_semaphore.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/schedule/key_work_tile.cuh"
#include "kernels/tile/panel.h"

namespace dfa {

// The thread of a block that releases the dq semaphore and, in pairs up to 64 columns
// (sm90_sends_ds), sends ds: four copies of 8 KiB a tile, where eight warps would start two of 2
// KiB each beside their products. Keys: Sm90Keys.
template <BackwardConfig kConfig, typename Keys>
struct Sm90SemaphoreReleaser {
  using Dq = typename Keys::Dq;
  using Shared = typename Keys::Shared;
  using Walk = typename Keys::Walk;
  using WorkTile = typename Keys::WorkTile;

  static DFA_DEVICE void run(const KernelArgs& args, const Shared& shared) {
    if constexpr (kConfig.sm90_sends_ds()) {
      send(args, shared);
    } else if constexpr (kConfig.early_release()) {
      pass(args, shared);
    } else if constexpr (Keys::kCounts) {
      Keys::template for_work_tiles<false>(
          args, shared, [&](const WorkTile& work, unsigned n) { count(args, shared, work, n); });
    }
  }

 private:
  // The n-th work's sums are there for who rounds them.
  static DFA_DEVICE void count(const KernelArgs& args, const Shared& shared, const WorkTile& work,
                               unsigned n) {
    ptx::wait(shared.added(), n % 2);
    ptx::arrive(shared.seen());
    const int ends = kConfig.split_q && work.part == 0 ? args.parts.parts : 1;
    ptx::add_release(Dq::ended(args, work.seq.batch * args.hk + work.head),
                     static_cast<unsigned>(ends));
  }

  static DFA_DEVICE void pass(const KernelArgs& args, const Shared& shared) {
    unsigned phase = 0;
    Keys::for_dq_tiles(
        args, shared, [](const WorkTile&, unsigned) {},
        [&](const WorkTile& work, typename Keys::DqWalk walk) {
          for (; walk.any() && walk.more(); walk.next()) {
            release_dq_semaphore<Dq, Walk>(args, work, walk, shared.added(), shared.seen(), phase);
          }
        });
  }

  // Of each tile whose dq is made here the next one's ds leaves, then its semaphore is released, in
  // the order in which warps come to both. n: the number of a tile, of all work tiles, and the
  // block's rank: where it is odd ds is sent.
  static DFA_DEVICE void send(const KernelArgs& args, const Shared& shared) {
    unsigned n = static_cast<unsigned>(Keys::rank());
    Keys::template for_work_tiles<false>(
        args, shared, [&](const WorkTile& work, unsigned work_tiles) {
          typename Keys::EverySecond made{Walk::of(args, work)};
          if (!Keys::kCounts && !made.any()) return;
          const unsigned end = made.any() ? n + made.count() : n;
          if ((!Keys::kCounts || n < end) && n % 2 != 0) {
            send_tile(shared, n / 2 % 2);
            made.Walk::next();
            ++n;
          }
#pragma unroll 1
          for (; n < end; n += 2) {
            if (n + 1 < end) send_tile(shared, n / 2 % 2);
            if constexpr (kConfig.early_release()) {
              unsigned phase = (n / 2 ^ Keys::rank()) % 2;
              release_dq_semaphore<Dq, Walk>(args, work, made, shared.added(), shared.seen(),
                                             phase);
              made.next();
            }
          }
          n = end;
          if constexpr (Keys::kCounts) count(args, shared, work, work_tiles);
        });
  }

  static DFA_DEVICE void send_tile(const Shared& shared, unsigned phase) {
    constexpr unsigned kBytes = panel_bytes(kGroupRows);
    const unsigned other = 1 - Keys::rank(), barrier = ptx::of_pair(shared.ds_there(), other);
#pragma unroll 1
    for (int part = 0; part < 2 * Keys::kHalves; ++part) {
      const unsigned to = shared.base + Keys::kDsAt + Keys::kDsBytes + part * kBytes;
      ptx::wait(shared.ds_stored(0, part), phase);
      ptx::send_bytes(ptx::of_pair(to, other), to + Keys::kDsBytes, kBytes, barrier);
    }
  }
};

}  // namespace dfa
