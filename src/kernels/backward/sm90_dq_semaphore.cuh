#pragma once

#include "kernels/backward/dq_semaphore.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/schedule/key_work_tile.cuh"

namespace dfa {

// Of the thread that acquires the dq semaphore of each tile for its block and releases it:
// `acquired` tells the warps that they may add to dq, by `added` they tell that they have. `walk`:
// the tiles the block adds to.
template <typename Dq, typename Walk, typename WorkTile>
DFA_DEVICE void serve_dq_semaphore(const KernelArgs& args, const WorkTile& work, Walk walk,
                                   unsigned acquired, unsigned added, unsigned& phase) {
  for (; walk.any() && walk.more(); walk.next()) {
    const typename Dq::Head head{work.seq, walk.head};
    if (Dq::acquires_at(walk.tile, walk.tiles.end)) Dq::acquire(args, head, walk.tile, work.key);
    ptx::arrive(acquired);
    ptx::wait(added, phase);
    phase ^= 1;
    if (Dq::releases_at(walk.tile, walk.tiles.begin)) {
      Dq::release(args, head, walk.tile, work.key);
    }
  }
}

// The same by two threads, so that one semaphore is waited for while the one before is released
// behind its fence: this thread acquires, ...
template <typename Dq, typename Walk, typename WorkTile>
DFA_DEVICE void acquire_dq_semaphore(const KernelArgs& args, const WorkTile& work, Walk walk,
                                     unsigned acquired, unsigned seen, unsigned& phase) {
  for (; walk.any() && walk.more(); walk.next()) {
    if (Dq::acquires_at(walk.tile, walk.tiles.end)) {
      Dq::acquire(args, {work.seq, walk.head}, walk.tile, work.key);
    }
    ptx::wait(seen, phase ^ 1);  // of the tile before
    phase ^= 1;
    ptx::arrive(acquired);
  }
}

// ... and another releases (sm90_semaphore_releaser.cuh), of one tile after the other. It
// says that it has seen a tile's additions, so that no barrier gets a phase ahead of one that is
// waited for.
template <typename Dq, typename Walk, typename WorkTile>
DFA_DEVICE void release_dq_semaphore(const KernelArgs& args, const WorkTile& work, const Walk& at,
                                     unsigned added, unsigned seen, unsigned& phase) {
  ptx::wait(added, phase);
  phase ^= 1;
  ptx::arrive(seen);
  if (Dq::releases_at(at.tile, at.tiles.begin)) {
    Dq::release(args, {work.seq, at.head}, at.tile, work.key);
  }
}

}  // namespace dfa
