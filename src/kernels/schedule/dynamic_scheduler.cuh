#pragma once

#include "kernels/args.h"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/schedule/key_work_tile.cuh"

// Work tiles of a grid that stays (BackwardConfig::persistent): a pair of blocks takes one after
// the other from a counter in global memory, in order, so that work waits for lower ones only,
// whichever pairs run at once.
namespace dfa {

// Of a pair: which work tiles it takes. A thread of its first block takes one ahead and writes it
// down for all readers of both; kParts: of work tiles some of which are in parts.
template <int kReaders, bool kParts = false>
struct DynamicTileScheduler {
  static constexpr unsigned kSlots = 2;
  static constexpr unsigned kSlotBytes = 16;  // a batch, -1 for no work, a head, a key, a part
  static constexpr int kBytes = kSlots * (kSlotBytes + 2 * 8);

  // Slots, then for each a barrier for "full" and one for "empty", at which readers arrive.
  unsigned base;
  unsigned n = 0;  // how many were taken

  DFA_DEVICE unsigned slot() const { return base + n % kSlots * kSlotBytes; }
  DFA_DEVICE unsigned full() const { return base + kSlots * kSlotBytes + n % kSlots * 8; }
  DFA_DEVICE unsigned empty() const { return full() + kSlots * 8; }
  DFA_DEVICE unsigned phase() const { return n / kSlots % 2; }

  DFA_DEVICE void init() const {
    for (unsigned i = 0; i < kSlots; ++i) {
      const unsigned barriers = base + kSlots * kSlotBytes + i * 8;
      ptx::init_barrier(barriers, 1);
      ptx::init_barrier(barriers + kSlots * 8, 2 * kReaders);
    }
  }

  // Of one thread of the first block: takes what readers will read next. work_at(n): the n-th of
  // all.
  template <typename WorkAt>
  DFA_DEVICE void take(const KernelArgs& args, const WorkAt& work_at) const {
    ptx::wait(empty(), phase() ^ 1);
    const auto work = work_at(ptx::add_1(args.dq_semaphores + args.dq_semaphore_count - 1));
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned there = ptx::of_pair(slot(), half);
      ptx::store_there(there, static_cast<unsigned>(work.seq.batch));
      ptx::store_there(there + 4, static_cast<unsigned>(work.head));
      ptx::store_there(there + 8, static_cast<unsigned>(work.key));
      if constexpr (kParts) ptx::store_there(there + 12, static_cast<unsigned>(work.part));
    }
    ptx::fence_cluster();
    for (unsigned half = 0; half < 2; ++half) ptx::arrive_there(ptx::of_pair(full(), half));
  }

  // Of a reader, a warp or, unless kWarp, a thread. False: there is no more.
  template <bool kWarp, typename WorkTile>
  DFA_DEVICE bool next(WorkTile& work) {
    ptx::wait_for_pair(full(), phase());
    work.seq.batch = static_cast<int>(ptx::load_shared(slot()));
    work.head = static_cast<int>(ptx::load_shared(slot() + 4));
    work.key = static_cast<int>(ptx::load_shared(slot() + 8));
    if constexpr (kParts) work.part = static_cast<int>(ptx::load_shared(slot() + 12));
    if constexpr (kWarp) {
      work.seq.batch = __shfl_sync(ptx::kWholeWarp, work.seq.batch, 0);
      work.head = __shfl_sync(ptx::kWholeWarp, work.head, 0);
      work.key = __shfl_sync(ptx::kWholeWarp, work.key, 0);
      if constexpr (kParts) work.part = __shfl_sync(ptx::kWholeWarp, work.part, 0);
    }
    if (!kWarp || ptx::thread_index() % 32 == 0) ptx::arrive_there(ptx::of_pair(empty(), 0));
    ++n;
    return work.seq.batch >= 0;
  }
};

}  // namespace dfa
