#pragma once

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/schedule/item_walk.h"
#include "spec/config.h"

namespace dfa {

// Where a block's copying thread is told which item comes next (taken_walk.h). Another thread, of a
// pair's first block for both, takes one ahead from a counter in global memory, so that nobody
// waits for the counter. In shared memory: a barrier for "full" and one for "empty", at which the
// copying threads arrive, the item, and what was taken.
template <bool kPaired, bool kNoted>
class ItemQueue {
 public:
  static constexpr bool kNotes = kNoted;

  explicit DFA_DEVICE ItemQueue(unsigned memory) : memory_(memory), parity_(0) {}

  DFA_DEVICE void init() const {
    ptx::init_barrier(full(), 1);
    ptx::init_barrier(empty(), kPaired ? 2 : 1);
  }

  // Of the thread that takes: all items that nobody has, and one that is none, which ends the walk.
  DFA_DEVICE void deal(unsigned* counter, const Items& items) const {
    Items::Item item{0, 0};
    for (unsigned parity = 1; item.head >= 0; parity ^= 1) {
      if constexpr (kPaired) {
        ptx::wait_for_pair(empty(), parity);
      } else {
        ptx::wait(empty(), parity);
      }
      item = items.nth(static_cast<int>(ptx::add_1(counter)));
      tell(item);
    }
  }

  // Of the copying thread.
  DFA_DEVICE Items::Item take() {
    if constexpr (kPaired) {
      ptx::wait_for_pair(full(), parity_);
    } else {
      ptx::wait(full(), parity_);
    }
    parity_ ^= 1;
    const Items::Item item = load(told());
    if constexpr (kPaired) {
      ptx::arrive_there(ptx::of_pair(empty(), 0));
    } else {
      ptx::arrive(empty());
    }
    return item;
  }
  DFA_DEVICE void note(int at, Items::Item item) const { store(place(at), item); }
  DFA_DEVICE Items::Item noted(int at) const { return load(place(at)); }

 private:
  DFA_DEVICE unsigned full() const { return memory_; }
  DFA_DEVICE unsigned empty() const { return memory_ + 8; }
  DFA_DEVICE unsigned told() const { return memory_ + 16; }
  DFA_DEVICE unsigned place(int at) const {
    return memory_ + 24 + 8 * (static_cast<unsigned>(at) % kNotedItems);
  }

  static DFA_DEVICE void store(unsigned to, Items::Item item) {
    ptx::store_shared(to, static_cast<unsigned>(item.head));
    ptx::store_shared(to + 4, static_cast<unsigned>(item.tile));
  }
  static DFA_DEVICE Items::Item load(unsigned from) {
    return {static_cast<int>(ptx::load_shared(from)), static_cast<int>(ptx::load_shared(from + 4))};
  }

  DFA_DEVICE void tell(Items::Item item) const {
    if constexpr (kPaired) {
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned there = ptx::of_pair(told(), half);
        ptx::store_there(there, static_cast<unsigned>(item.head));
        ptx::store_there(there + 4, static_cast<unsigned>(item.tile));
      }
      ptx::fence_cluster();
      for (unsigned half = 0; half < 2; ++half) ptx::arrive_there(ptx::of_pair(full(), half));
    } else {
      store(told(), item);
      ptx::arrive(full());
    }
  }

  unsigned memory_, parity_;
};

}  // namespace dfa
