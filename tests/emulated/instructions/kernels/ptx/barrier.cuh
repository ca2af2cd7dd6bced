#pragma once

#include "emulated/async.h"
#include "kernels/device.h"

namespace dfa::ptx {

inline void init_barrier(unsigned barrier, unsigned arrivals) {
  emulated::init_barrier(barrier, arrivals);
}
inline void fence_barrier_init() {}
inline void arrive(unsigned barrier) { emulated::arrive(barrier, 0); }
inline void arrive_expecting(unsigned barrier, unsigned bytes) { emulated::arrive(barrier, bytes); }
inline void wait(unsigned barrier, unsigned parity) { emulated::wait_phase(barrier, parity); }

inline void arrive_warps(unsigned barrier, unsigned threads) {
  if (!emulated::deaf.named_barriers) emulated::arrive(emulated::named_barrier(barrier), threads);
}

inline void fence_async() { emulated::fence_async(); }

template <int kRegisters>
void setmaxnreg_dec() {}
template <int kRegisters>
void setmaxnreg_inc() {}

}  // namespace dfa::ptx
