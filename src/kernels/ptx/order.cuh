#pragma once

#include "kernels/device.h"

// What thread blocks tell each other through global memory.
namespace dfa::ptx {

// Whatever its thread block wrote before the store_release that it sees is there to be read.
DFA_DEVICE unsigned load_acquire(const unsigned* from) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

DFA_DEVICE void store_release(unsigned* to, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// Copies that this thread starts from now on see in global memory what it would.
DFA_DEVICE void fence_async_global() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

// Counts one more; what it was before.
DFA_DEVICE unsigned add_1(unsigned* to) {
  unsigned before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(to) : "memory");
  return before;
}

// Likewise so many.
DFA_DEVICE unsigned add_some(unsigned* to, unsigned more) {
  unsigned before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(to), "r"(more)
               : "memory");
  return before;
}

// Likewise, when whatever its warp wrote before is there for whoever counts behind it: and that of
// those who counted before for this thread.
DFA_DEVICE unsigned add_1_acquire_release(unsigned* to) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(to) : "memory");
  return before;
}

// Counts so many more, when whatever its warp wrote before is there for a load_acquire that sees
// it.
DFA_DEVICE void add_release(unsigned* to, unsigned more = 1) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(more) : "memory");
}

// 128 bytes, aligned so, that nobody will read as they are: what the L2 has of them need not go to
// memory.
DFA_DEVICE void discard_line(const void* line) {
  asm volatile("discard.global.L2 [%0], 128;" ::"l"(line) : "memory");
}

// Where the kernel ahead on the stream may not yet have ended (gpu::Launch::overlaps_previous):
// waits until it has, and all that it wrote is there.
DFA_DEVICE void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A sum in global memory, without waiting for it.
DFA_DEVICE void add(float* to, float x) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

// Four sums in global memory, 16-byte aligned, without waiting for them: one instruction from sm_90
// on, four before.
DFA_DEVICE void add_4(float* to, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]),
               "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
#else
  for (int i = 0; i < 4; ++i) add(to + i, x[i]);
#endif
}

}  // namespace dfa::ptx
