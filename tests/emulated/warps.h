#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "emulated/fibers.h"

// The words of CUDA C++ that the kernels use, for fibers. Instructions are in
// instructions/kernels/ptx, which stands before src in the include path; all else is the kernels'
// own source.
#define __CUDACC__ 1
#define __global__ inline
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
#define __align__(bytes)
#define threadIdx (dfa::emulated::running->thread)
#define blockIdx (dfa::emulated::running->block)
#define blockDim (dfa::emulated::block_size)
#define gridDim (dfa::emulated::grid_size)

struct float2 {
  float x, y;
};
struct uint2 {
  unsigned x, y;
};
struct float4 {
  float x, y, z, w;
};
struct uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }  // -ffp-contract=off
inline float __frcp_rn(float x) { return 1 / x; }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(y) << 32 | x;
  unsigned all = 0;
  for (int i = 0; i < 4; ++i) {
    all |= static_cast<unsigned>(bytes >> (selector >> (4 * i) & 7) * 8 & 0xff) << (8 * i);
  }
  return all;
}
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline void __nanosleep(unsigned) { dfa::emulated::yield(); }
inline void __syncwarp() { dfa::emulated::wait(dfa::emulated::warp().barrier, 32); }
inline void __syncthreads() { dfa::emulated::wait(dfa::emulated::named_barrier(0), blockDim.x); }

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
