#pragma once

#include <ucontext.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

// A thread block on the processor: a fiber for every thread, one running at a time, and the words
// of CUDA C++ that the kernels use. Instructions are in instructions/kernels/ptx, which stands
// before src in the include path; all else is the kernels' own source.
namespace dfa::emulated {

struct Index {
  unsigned x;
};

struct Barrier {
  int arrived = 0;
  unsigned round = 0;
};

struct Warp {
  Barrier barrier;
  alignas(16) char said[32][32];
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(128 << 10);
  Index thread{};
  bool done = false;
};

inline ucontext_t scheduler;
inline Fiber* running = nullptr;
inline Index block, block_size;
inline std::vector<Warp> warps;
inline Barrier barriers[16];
inline std::function<void()> kernel;

inline void yield() { swapcontext(&running->context, &scheduler); }

inline void wait(Barrier& barrier, unsigned threads) {
  const unsigned round = barrier.round;
  if (++barrier.arrived == static_cast<int>(threads)) {
    barrier.arrived = 0;
    ++barrier.round;
    return;
  }
  while (barrier.round == round) yield();
}

inline unsigned lane() { return running->thread.x % 32; }
inline Warp& warp() { return warps[running->thread.x / 32]; }

// What every lane says, heard by `use` through said(lane).
template <typename T, typename Use>
void exchange(const T& value, const Use& use) {
  static_assert(sizeof(T) <= sizeof(Warp::said[0]));
  std::memcpy(warp().said[lane()], &value, sizeof(T));
  wait(warp().barrier, 32);
  use([](unsigned from) {
    T heard;
    std::memcpy(&heard, warp().said[from], sizeof(T));
    return heard;
  });
  wait(warp().barrier, 32);
}

inline void run_fiber() {
  kernel();
  running->done = true;
  yield();
}

inline void start(Fiber& fiber, unsigned thread) {
  fiber.thread = {thread};
  fiber.done = false;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, run_fiber, 0);
}

// Thread blocks run one after another, so that none may wait for a later one.
inline void launch(unsigned blocks, unsigned threads, const std::function<void()>& work) {
  kernel = work;
  block_size = {threads};
  std::vector<Fiber> fibers(threads);
  for (unsigned b = 0; b < blocks; ++b) {
    block = {b};
    warps.assign(threads / 32, {});
    for (Barrier& barrier : barriers) barrier = {};
    for (unsigned t = 0; t < threads; ++t) start(fibers[t], t);
    for (bool some = true; some;) {
      some = false;
      for (Fiber& fiber : fibers) {
        if (fiber.done) continue;
        running = &fiber;
        swapcontext(&scheduler, &fiber.context);
        some |= !fiber.done;
      }
    }
  }
}

}  // namespace dfa::emulated

namespace dfa {
extern char smem[];
}

#define __CUDACC__ 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
#define __align__(bytes)
#define threadIdx (dfa::emulated::running->thread)
#define blockIdx (dfa::emulated::block)
#define blockDim (dfa::emulated::block_size)

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
struct uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }  // -ffp-contract=off
inline float __frcp_rn(float x) { return 1 / x; }
inline void __nanosleep(unsigned) { dfa::emulated::yield(); }
inline void __syncthreads() { dfa::emulated::wait(dfa::emulated::barriers[0], blockDim.x); }

template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  T heard;
  dfa::emulated::exchange(value,
                          [&](auto said) { heard = said(static_cast<unsigned>(from) % 32); });
  return heard;
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, unsigned bits) {
  return __shfl_sync(mask, value, static_cast<int>(dfa::emulated::lane() ^ bits));
}

inline bool __any_sync(unsigned, bool value) {
  bool any = false;
  dfa::emulated::exchange(value, [&](auto said) {
    for (unsigned i = 0; i < 32; ++i) any |= said(i);
  });
  return any;
}
