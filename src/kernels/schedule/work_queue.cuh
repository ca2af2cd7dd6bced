#pragma once

#include "kernels/args.h"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/order.cuh"

// Works of a grid that stays (BackwardConfig::persistent): a pair of blocks takes one after the
// other from a counter in global memory, in order, so that work waits for lower ones only,
// whichever pairs run at once.
namespace dfa {

// Of a pair: which works it takes. A thread of its first block takes one ahead and writes it down
// for all readers of both.
template <int kReaders>
struct WorkQueue {
  static constexpr unsigned kSlots = 2;
  static constexpr int kBytes = 3 * 8 * kSlots;

  // Slots, then for each a barrier for "full" and one for "empty", at which readers arrive.
  unsigned base;
  unsigned n = 0;  // how many were taken

  DFA_DEVICE unsigned slot() const { return base + n % kSlots * 8; }
  DFA_DEVICE unsigned full() const { return slot() + kSlots * 8; }
  DFA_DEVICE unsigned empty() const { return slot() + 2 * kSlots * 8; }
  DFA_DEVICE unsigned phase() const { return n / kSlots % 2; }

  DFA_DEVICE void init() const {
    for (unsigned i = 0; i < kSlots; ++i) {
      ptx::init_barrier(base + (kSlots + i) * 8, 1);
      ptx::init_barrier(base + (2 * kSlots + i) * 8, 2 * kReaders);
    }
  }

  // Of one thread of the first block: takes what readers will read next.
  DFA_DEVICE void take(const KernelArgs& args) const {
    ptx::wait(empty(), phase() ^ 1);
    const unsigned work = ptx::add_1(args.turns + args.turn_count - 1);
    for (unsigned half = 0; half < 2; ++half) ptx::store_there(ptx::of_pair(slot(), half), work);
    ptx::fence_cluster();
    for (unsigned half = 0; half < 2; ++half) ptx::arrive_there(ptx::of_pair(full(), half));
  }

  // Of a reader: a thread, ...
  DFA_DEVICE int next_of_thread() {
    ptx::wait_for_pair(full(), phase());
    const unsigned work = ptx::load_shared(slot());
    ptx::arrive_there(ptx::of_pair(empty(), 0));
    ++n;
    return static_cast<int>(work);
  }
  // ... or a warp.
  DFA_DEVICE int next() {
    ptx::wait_for_pair(full(), phase());
    const unsigned work = ptx::load_shared(slot());
    __syncwarp();
    if (ptx::thread_index() % 32 == 0) ptx::arrive_there(ptx::of_pair(empty(), 0));
    ++n;
    return __shfl_sync(ptx::kWholeWarp, static_cast<int>(work), 0);
  }
};

}  // namespace dfa
