#pragma once

#include "kernels/backward/dq_semaphore.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/schedule/key_work_tile.cuh"

namespace dfa {

// Of the thread that waits for a block's turns and passes them on: `turn` tells the warps that they
// may add to dq, by `added` they tell that they have. `walk`: the tiles it adds to.
template <typename Dq, typename Walk, typename WorkTile>
DFA_DEVICE void keep_turns(const KernelArgs& args, const WorkTile& work, Walk walk, unsigned turn,
                           unsigned added, unsigned& phase) {
  for (; walk.any() && walk.more(); walk.next()) {
    const typename Dq::Head head{work.seq, walk.head};
    if (Dq::starts_turn(walk.tile, walk.tiles.end)) Dq::wait(args, head, walk.tile, work.key);
    ptx::arrive(turn);
    ptx::wait(added, phase);
    phase ^= 1;
    if (Dq::ends_turn(walk.tile, walk.tiles.begin)) {
      Dq::pass_on(args, head, walk.tile, work.key);
    }
  }
}

// The same by two threads, so that a turn is waited for while the one before is passed on behind
// its fence: this one waits for turns, ...
template <typename Dq, typename Walk, typename WorkTile>
DFA_DEVICE void take_turns(const KernelArgs& args, const WorkTile& work, Walk walk, unsigned turn,
                           unsigned seen, unsigned& phase) {
  for (; walk.any() && walk.more(); walk.next()) {
    if (Dq::starts_turn(walk.tile, walk.tiles.end)) {
      Dq::wait(args, {work.seq, walk.head}, walk.tile, work.key);
    }
    ptx::wait(seen, phase ^ 1);  // of the tile before
    phase ^= 1;
    ptx::arrive(turn);
  }
}

// ... and another passes them on (sm90_semaphore_releaser.cuh), of one tile after the other. It
// says that it has seen a tile's additions, so that no barrier gets a phase ahead of one that is
// waited for.
template <typename Dq, typename Walk, typename WorkTile>
DFA_DEVICE void pass_turn(const KernelArgs& args, const WorkTile& work, const Walk& at,
                          unsigned added, unsigned seen, unsigned& phase) {
  ptx::wait(added, phase);
  phase ^= 1;
  ptx::arrive(seen);
  if (Dq::ends_turn(at.tile, at.tiles.begin)) {
    Dq::pass_on(args, {work.seq, at.head}, at.tile, work.key);
  }
}

}  // namespace dfa
