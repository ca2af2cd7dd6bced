#pragma once

#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/schedule/pipeline.cuh"
#include "spec/gpu_tiles.h"

namespace dfa {

// A ring whose parts one warpgroup takes one after the other, each for one group of products, and
// gives back when those are done: two are out at a time.
template <int kCount>
struct StreamedRing : Pipeline<kCount, kGroupThreads / 32> {
  using Base = Pipeline<kCount, kGroupThreads / 32>;

  // The compiler is not to know where in the ring the next part is: it would hold the descriptors
  // of all places.
  DFA_DEVICE unsigned take() {
    ptx::forget(Base::stage);
    Base::wait_full();
    const unsigned part = Base::tile();
    Base::next();
    return part;
  }

  // The part that was taken so many before the next one.
  template <int kBefore>
  DFA_DEVICE void give_back() const {
    static_assert(kBefore <= kCount);
    Base given = *this;
    given.stage += kCount - kBefore;
    if (given.stage >= kCount) given.stage -= kCount;
    given.release(ptx::kept_thread_index() % 32);
  }

  // All products but those of the part that was taken last are done.
  DFA_DEVICE void give_back_done() const {
    ptx::wait_products<1>();
    give_back<2>();
  }
};

}  // namespace dfa
