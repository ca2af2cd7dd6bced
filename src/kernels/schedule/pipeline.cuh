#pragma once

#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/copy.cuh"

namespace dfa {

// A ring of tiles in shared memory between a thread that starts copies and warps that read them:
// each stage has a barrier for "full" and one for "empty", at which kArrivals warps arrive. Of a
// pair of blocks that are filled together each warp gives a stage back to both. Warps that fill it
// themselves arrive at "full", kFillers of them.
template <int kCount, int kArrivals, bool kPaired = false, int kFillers = 1>
struct Pipeline {
  unsigned tiles, barriers;
  int tile_bytes;
  unsigned stage = 0, phase = 0;

  DFA_DEVICE unsigned tile() const { return tiles + stage * tile_bytes; }
  DFA_DEVICE unsigned full() const { return barriers + 8 * stage; }
  DFA_DEVICE unsigned empty() const { return barriers + 8 * (kCount + stage); }
  DFA_DEVICE void wait_full() const { ptx::wait(full(), phase); }
  DFA_DEVICE void wait_empty() const { ptx::wait(empty(), phase ^ 1); }
  DFA_DEVICE void release() const { release(ptx::thread_index() % 32); }
  DFA_DEVICE void release(unsigned lane) const {
    if constexpr (kPaired) {
      if (lane < 2) ptx::arrive_there(ptx::of_pair(empty(), lane));
    } else {
      if (lane == 0) ptx::arrive(empty());
    }
  }
  DFA_DEVICE void next() {
    if (++stage == kCount) {
      stage = 0;
      phase ^= 1;
    }
  }
  DFA_DEVICE void init() const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      ptx::init_barrier(barriers + 8 * i, kFillers);
      ptx::init_barrier(barriers + 8 * (kCount + i), kArrivals * (kPaired ? 2 : 1));
    }
  }
};

// The same of a power of two of stages, by how many were filled: in one register.
template <int kCount, int kArrivals>
struct CountedPipeline {
  static_assert((kCount & (kCount - 1)) == 0);
  unsigned tiles, barriers;
  int tile_bytes;
  unsigned count = 0;

  DFA_DEVICE unsigned stage() const { return count % kCount; }
  DFA_DEVICE unsigned phase() const { return count / kCount % 2; }
  DFA_DEVICE unsigned tile() const { return tiles + stage() * tile_bytes; }
  DFA_DEVICE unsigned full() const { return barriers + 8 * stage(); }
  DFA_DEVICE unsigned empty() const { return barriers + 8 * (kCount + stage()); }
  DFA_DEVICE void wait_full() const { ptx::wait(full(), phase()); }
  DFA_DEVICE void wait_empty() const { ptx::wait(empty(), phase() ^ 1); }
  DFA_DEVICE void release(unsigned lane) const {
    if (lane == 0) ptx::arrive(empty());
  }
  DFA_DEVICE void next() { ++count; }
  DFA_DEVICE void init() const { Pipeline<kCount, kArrivals>{tiles, barriers, tile_bytes}.init(); }
};

// Likewise, but every thread that reads gives a stage back, at a named barrier of the stage, where
// the whole copying warp waits. One instruction a warp as well, and an order that racecheck of
// compute-sanitizer follows where threads read a stage themselves and all of them meet once a round
// (0019): of one lane that arrives for its warp it does not know whom it speaks for.
template <int kCount, int kReaders>
struct SharedPipeline {
  static constexpr int kThreads = kReaders + 32;
  unsigned tiles, barriers, first_empty;
  int tile_bytes;
  unsigned stage = 0, phase = 0;
  bool reused = false;

  DFA_DEVICE unsigned tile() const { return tiles + stage * tile_bytes; }
  DFA_DEVICE unsigned full() const { return barriers + 8 * stage; }
  DFA_DEVICE void wait_full() const { ptx::wait(full(), phase); }
  DFA_DEVICE void wait_empty() const {
    __syncwarp();
    if (reused) ptx::sync_warps(first_empty + stage, kThreads);
  }
  DFA_DEVICE void release() const { ptx::arrive_warps(first_empty + stage, kThreads); }
  DFA_DEVICE void next() {
    if (++stage == kCount) {
      stage = 0;
      phase ^= 1;
      reused = true;
    }
  }
  // The copying warp, in the end: no barrier is left with threads at it.
  DFA_DEVICE void wait_all_empty() const {
    __syncwarp();
    const unsigned filled = reused ? kCount : stage;
    for (unsigned i = 0; i < filled; ++i) ptx::sync_warps(first_empty + i, kThreads);
  }
  DFA_DEVICE void init() const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) ptx::init_barrier(barriers + 8 * i, 1);
  }
};

}  // namespace dfa
