#pragma once

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/schedule/recompute_queue.h"

// The notes of recompute_queue.h in shared memory: a barrier to meet at, did any ask, a bit for
// each work tile, where the work tiles begin, a parked walk. One thread walks, others ask.
namespace dfa {

class RecomputeNotes {
 public:
  static constexpr int kBytes = 16 + PersistentTileScheduler::kAtOnce / 8 + 16 + 32;

  explicit DFA_DEVICE RecomputeNotes(unsigned memory) : memory_(memory) {}

  DFA_DEVICE unsigned meeting() const { return memory_; }

  DFA_DEVICE void ask(int work_tile) const {
    ptx::or_shared(bits(work_tile), 1u << work_tile % 32);
    ptx::or_shared(memory_ + 8, 1);
  }
  // Likewise, of both blocks of a pair that do the work tile together.
  DFA_DEVICE void ask_both(int work_tile) const {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      ptx::or_there(ptx::of_pair(bits(work_tile), half), 1u << work_tile % 32);
      ptx::or_there(ptx::of_pair(memory_ + 8, half), 1);
    }
    ptx::fence_cluster();
  }
  DFA_DEVICE bool asked(int work_tile) const {
    return (ptx::load_shared(bits(work_tile)) >> work_tile % 32 & 1) != 0;
  }
  DFA_DEVICE bool any() const { return ptx::load_shared(memory_ + 8) != 0; }

  template <typename Walk>
  DFA_DEVICE void start(const Walk& walk) const {
    for (int at = 8; at < kBeginAt; at += 4) ptx::store_shared(memory_ + at, 0);
    write(memory_ + kBeginAt, walk);
  }
  template <typename Walk>
  DFA_DEVICE void go_back(Walk& walk) const {
    walk.go_back(read(memory_ + kBeginAt, walk));
  }

  template <typename Walk>
  DFA_DEVICE void park(const Walk& walk, unsigned state) const {
    write(memory_ + kParkedAt, walk);
    ptx::store_shared(memory_ + kParkedAt + 16, state);
  }
  template <typename Walk>
  DFA_DEVICE unsigned unpark(Walk& walk) const {
    walk.go(read(memory_ + kParkedAt, walk));
    return ptx::load_shared(memory_ + kParkedAt + 16);
  }

 private:
  static constexpr int kBeginAt = 16 + PersistentTileScheduler::kAtOnce / 8,
                       kParkedAt = kBeginAt + 16;

  DFA_DEVICE unsigned bits(int work_tile) const {
    return memory_ + 16 + static_cast<unsigned>(work_tile / 32 * 4);
  }

  template <typename Walk>
  static DFA_DEVICE void write(unsigned to, const Walk& walk) {
    const typename Walk::Place place = walk.place();
    ptx::store_shared(to, static_cast<unsigned>(place.first_head));
    ptx::store_shared(to + 4, static_cast<unsigned>(place.round));
    ptx::store_shared(to + 8, static_cast<unsigned>(place.turn));
    ptx::store_shared(to + 12, static_cast<unsigned>(place.work_tile));
  }
  template <typename Walk>
  static DFA_DEVICE typename Walk::Place read(unsigned from, const Walk&) {
    const auto word = [&](unsigned i) { return static_cast<int>(ptx::load_shared(from + 4 * i)); };
    return {word(0), word(1), word(2), word(3)};
  }

  unsigned memory_;
};

}  // namespace dfa
