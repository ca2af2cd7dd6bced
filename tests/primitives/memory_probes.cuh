#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/order.cuh"
#include "primitives/probe_args.h"

// Ways into shared memory and out of it, matrices of a warp, and words between thread blocks.
namespace dfa::probe {

inline constexpr unsigned kPoison = 0xffffffffu;

// A block's shared memory, `words` of it, from global memory.
DFA_DEVICE void fill_shared(unsigned* shared, const void* from, int words) {
  for (int i = static_cast<int>(threadIdx.x); i < words; i += static_cast<int>(blockDim.x)) {
    shared[i] = static_cast<const unsigned*>(from)[i];
  }
  __syncthreads();
}

// Each thread copies the chunk of 16 bytes that b names, or zeros where that is negative, in two
// groups, of which the first is read when kPending may still be under way.
template <int kPending>
__global__ void copy_chunks(const __grid_constant__ Args args) {
  __shared__ __align__(16) unsigned shared[2 * 128 * 4];
  for (int i = 0; i < 8; ++i) shared[threadIdx.x * 8 + static_cast<unsigned>(i)] = kPoison;
  __syncthreads();
  const int* chunks = static_cast<const int*>(args.b);
  for (unsigned group = 0; group < 2; ++group) {
    const unsigned slot = group * 128 + threadIdx.x;
    const int chunk = chunks[slot];
    const char* source = chunk < 0 ? nullptr : static_cast<const char*>(args.a) + 16 * chunk;
    ptx::copy_16(ptx::shared_address(shared + slot * 4), source, chunk >= 0);
    ptx::commit_copies();
  }
  uint4* out = static_cast<uint4*>(args.out);
  const uint4* copied = reinterpret_cast<const uint4*>(shared);
  ptx::wait_copies<kPending>();
  out[threadIdx.x] = copied[threadIdx.x];
  ptx::wait_copies<0>();
  out[128 + threadIdx.x] = copied[128 + threadIdx.x];
}

// Thread i reads four words, two and one from where b says.
inline __global__ void load_shared(const __grid_constant__ Args args) {
  __shared__ __align__(16) unsigned shared[512];
  fill_shared(shared, args.a, 512);
  const unsigned at = static_cast<const unsigned*>(args.b)[threadIdx.x];
  const unsigned base = ptx::shared_address(shared);
  const float4 four = ptx::load_shared_4(base + at * 16);
  const float2 two = ptx::load_shared_2(base + at * 8);
  float* out = static_cast<float*>(args.out) + threadIdx.x * 7;
  out[0] = four.x;
  out[1] = four.y;
  out[2] = four.z;
  out[3] = four.w;
  out[4] = two.x;
  out[5] = two.y;
  out[6] = ptx::load_shared_1(base + at * 4);
}

// Pairs of warps tell each other words over a barrier of their own, many times: pair p for
// n + p rounds, so that one barrier for all would never end.
inline __global__ void meet(const __grid_constant__ Args args) {
  __shared__ unsigned said[128];
  const unsigned pair = threadIdx.x / 64;
  unsigned value = static_cast<const unsigned*>(args.a)[threadIdx.x];
  for (int round = 0; round < args.n + static_cast<int>(pair); ++round) {
    said[threadIdx.x] = value;
    ptx::sync_warps(1 + pair, 64);
    value = value * 3u + said[threadIdx.x ^ 32u];
    ptx::sync_warps(1 + pair, 64);
  }
  static_cast<unsigned*>(args.out)[threadIdx.x] = value;
}

template <bool kTransposed>
__global__ void read_matrices(const __grid_constant__ Args args) {
  __shared__ __align__(16) unsigned shared[512];
  fill_shared(shared, args.a, 512);
  const unsigned row = static_cast<const unsigned*>(args.b)[threadIdx.x];
  unsigned r[4];
  if constexpr (kTransposed) {
    ptx::ldmatrix_trans(r, ptx::shared_address(shared) + row * 16);
  } else {
    ptx::ldmatrix(r, ptx::shared_address(shared) + row * 16);
  }
  for (int i = 0; i < 4; ++i) static_cast<unsigned*>(args.out)[threadIdx.x * 4 + i] = r[i];
}

// Operands and sum of a warp as its registers hold them, four, two and four words a lane.
template <DType kElement>
__global__ void multiply_fragment(const __grid_constant__ Args args) {
  unsigned a[4];
  float c[4];
  const unsigned* b = static_cast<const unsigned*>(args.b) + threadIdx.x * 2;
  for (int i = 0; i < 4; ++i) {
    a[i] = static_cast<const unsigned*>(args.a)[threadIdx.x * 4 + i];
    c[i] = static_cast<const float*>(args.c)[threadIdx.x * 4 + i];
  }
  ptx::mma<kElement>(c, a, b[0], b[1]);
  for (int i = 0; i < 4; ++i) static_cast<float*>(args.out)[threadIdx.x * 4 + i] = c[i];
}

// Block n writes 128 words when it sees that block n - 1 has, each made of the one before. The
// words follow the counter.
inline __global__ void take_turns(const __grid_constant__ Args args) {
  unsigned* counter = static_cast<unsigned*>(args.out);
  unsigned* words = counter + 32;
  if (threadIdx.x == 0) {
    while (ptx::load_acquire(counter) != blockIdx.x) __nanosleep(32);
  }
  __syncthreads();
  const unsigned before = words[threadIdx.x ^ 1u];
  __syncthreads();
  words[threadIdx.x] = before * 5u + blockIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) ptx::store_release(counter, blockIdx.x + 1);
}

// Every block adds its numbers to the same ones.
inline __global__ void add_numbers(const __grid_constant__ Args args) {
  float x[4];
  const float* from = static_cast<const float*>(args.a) + (blockIdx.x * 128 + threadIdx.x) * 4;
  for (int i = 0; i < 4; ++i) x[i] = from[i];
  ptx::add_4(static_cast<float*>(args.out) + threadIdx.x * 4, x);
}

}  // namespace dfa::probe
