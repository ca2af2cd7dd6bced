#pragma once

#include "kernels/device.h"

// Copies from global to shared memory that do not pass through registers, and loads from there.
namespace dfa::ptx {

DFA_DEVICE unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The first `bytes` of 16 or 4, and zeros. sm_80.
template <int kPlace>
DFA_DEVICE void copy_up_to(unsigned target, const void* source, int bytes) {
  if constexpr (kPlace == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source),
                 "r"(bytes)
                 : "memory");
  }
}

// 16 bytes; zeros where `valid` is false, and then `source` is not read. On sm_75 they pass through
// registers and are there at once.
DFA_DEVICE void copy_16(unsigned target, const void* source, bool valid) {
  if constexpr (kSm75) {
    asm volatile(
        "{\n"
        ".reg .pred valid;\n"
        ".reg .b32 a, b, c, d;\n"
        "setp.ne.b32 valid, %2, 0;\n"
        "mov.b32 a, 0;\n"
        "mov.b32 b, 0;\n"
        "mov.b32 c, 0;\n"
        "mov.b32 d, 0;\n"
        "@valid ld.global.nc.v4.b32 {a, b, c, d}, [%1];\n"
        "st.shared.v4.b32 [%0], {a, b, c, d};\n"
        "}\n" ::"r"(target),
        "l"(source), "r"(static_cast<int>(valid))
        : "memory");
    return;
  }
  copy_up_to<16>(target, source, valid ? 16 : 0);
}

// 4 bytes. sm_80.
DFA_DEVICE void copy_4(unsigned target, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(source) : "memory");
}

DFA_DEVICE float4 load_shared_4(unsigned address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

DFA_DEVICE float2 load_shared_2(unsigned address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

DFA_DEVICE float load_shared_1(unsigned address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}

DFA_DEVICE void store_shared_4(unsigned address, const float (&x)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
}

DFA_DEVICE uint4 load_words_4(unsigned address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Words of shared memory, one at a time.
DFA_DEVICE unsigned load_shared(unsigned address) {
  unsigned value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
DFA_DEVICE void store_shared(unsigned address, unsigned value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
DFA_DEVICE void or_shared(unsigned address, unsigned bits) {
  asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(address), "r"(bits) : "memory");
}

// What was there before.
DFA_DEVICE unsigned add_shared(unsigned address, unsigned more) {
  unsigned before;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(address), "r"(more)
               : "memory");
  return before;
}

// Ends a group of copies: those since the last call.
DFA_DEVICE void commit_copies() {
  if constexpr (!kSm75) asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `kPending` of this thread's groups are under way.
template <int kPending>
DFA_DEVICE void wait_copies() {
  if constexpr (!kSm75) asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Waits for `threads` threads, whole warps, that name the barrier; 0 is __syncthreads'.
DFA_DEVICE void sync_warps(unsigned barrier, unsigned threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace dfa::ptx
