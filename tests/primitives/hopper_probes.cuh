#pragma once

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/tile/panel.h"
#include "kernels/tile/panel_rows.cuh"
#include "primitives/probe_args.h"

// What sm_90 has of its own: barriers in shared memory, the copy engine, products of a warpgroup.
namespace dfa::probe {

// Two warps pass a word to and fro over two barriers, n times; out tells what both have made of it
// and that a wait for the parity before a new barrier's returns.
inline __global__ void phases(const __grid_constant__ Args args) {
  __shared__ __align__(8) unsigned long long barriers[2];
  __shared__ unsigned value;
  const unsigned full = ptx::shared_address(barriers), empty = full + 8;
  if (threadIdx.x == 0) {
    value = *static_cast<const unsigned*>(args.a);
    ptx::init_barrier(full, 1);
    ptx::init_barrier(empty, 32);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  unsigned phase = 0;
  for (int round = 0; round < args.n; ++round) {
    if (threadIdx.x == 0) {
      ptx::wait(empty, phase ^ 1);
      value = value * 3u + 1u;
      ptx::arrive(full);
    } else if (threadIdx.x >= 32) {
      ptx::wait(full, phase);
      const unsigned heard = value;
      __syncwarp();
      if (threadIdx.x == 32) value = heard * 5u + 7u;
      __syncwarp();
      ptx::arrive(empty);
    }
    phase ^= 1;
  }
  if (threadIdx.x == 32) *static_cast<unsigned*>(args.out) = value;
}

// Warps 0 to 3 leave words and go on; warps 4 to 7 wait for them.
inline __global__ void announce(const __grid_constant__ Args args) {
  __shared__ unsigned said[128];
  if (threadIdx.x < 128) {
    said[threadIdx.x] = static_cast<const unsigned*>(args.a)[threadIdx.x];
    ptx::arrive_warps(3, 256);
  } else {
    ptx::sync_warps(3, 256);
    static_cast<unsigned*>(args.out)[threadIdx.x - 128] = said[255 - threadIdx.x];
  }
}

// Of each warp the one that is chosen, three times.
inline __global__ void choose(const __grid_constant__ Args args) {
  unsigned times = 0;
  for (int i = 0; i < 3; ++i) times += ptx::elect();
  static_cast<unsigned*>(args.out)[threadIdx.x] = times;
}

// A warpgroup gives registers back, two others take them and sum with more than they had.
inline __global__ void __launch_bounds__(384, 1)
    trade_registers(const __grid_constant__ Args args) {
  if (threadIdx.x < 128) {
    ptx::setmaxnreg_dec<24>();
    return;
  }
  ptx::setmaxnreg_inc<240>();
  const unsigned thread = threadIdx.x - 128;
  float x[200];
#pragma unroll
  for (int i = 0; i < 200; ++i) {
    x[i] = static_cast<const float*>(args.a)[(thread + static_cast<unsigned>(i) * 37u) % 256u];
  }
#pragma unroll 1
  for (int round = 0; round < args.n; ++round) {
#pragma unroll
    for (int i = 0; i < 200; ++i) x[i] += x[(i + 1) % 200];
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 200; ++i) sum += x[i];
  static_cast<float*>(args.out)[thread] = sum;
}

// Registers a become matrices with rows where b says; all of shared memory is the output.
inline __global__ void write_matrices(const __grid_constant__ Args args) {
  __shared__ __align__(16) unsigned shared[512];
  for (unsigned i = threadIdx.x; i < 512; i += 32) shared[i] = 0xffffffffu;
  __syncwarp();
  unsigned r[4];
  for (int i = 0; i < 4; ++i) r[i] = static_cast<const unsigned*>(args.a)[threadIdx.x * 4 + i];
  const unsigned row = static_cast<const unsigned*>(args.b)[threadIdx.x];
  ptx::store_matrices(ptx::shared_address(shared) + row * 16, r);
  __syncwarp();
  for (unsigned i = threadIdx.x; i < 512; i += 32) static_cast<unsigned*>(args.out)[i] = shared[i];
}

// A box comes in at (n, m, head 1, batch 1) and is put out as it lies in shared memory; with its
// bits inverted it goes back to the same place, unless that is before the tensor.
inline __global__ void move_box(const __grid_constant__ Args args) {
  __shared__ __align__(1024) unsigned box[16 * 32];
  __shared__ __align__(8) unsigned long long barriers[1];
  const unsigned barrier = ptx::shared_address(barriers), target = ptx::shared_address(box);
  for (unsigned i = threadIdx.x; i < 512; i += 32) box[i] = 0xffffffffu;
  if (threadIdx.x == 0) {
    ptx::prefetch(args.from);
    ptx::init_barrier(barrier, 1);
    ptx::fence_barrier_init();
  }
  ptx::fence_async();
  __syncwarp();
  if (threadIdx.x == 0) {
    ptx::arrive_expecting(barrier, 2048);
    ptx::load_box(target, args.from, barrier, args.n, args.m, 1, 1);
  }
  ptx::wait(barrier, 0);
  for (unsigned i = threadIdx.x; i < 512; i += 32) {
    static_cast<unsigned*>(args.out)[i] = box[i];
    box[i] = ~box[i];
  }
  ptx::fence_async();
  __syncwarp();
  if (threadIdx.x == 0 && args.n >= 0 && args.m >= 0) {
    ptx::store_box(args.to, target, args.n, args.m, 1, 1);
    ptx::commit_stores();
    ptx::wait_stores_read();
  }
  __syncwarp();
  // The box's place may be written again, and what was stored is what it held before.
  for (unsigned i = threadIdx.x; i < 512; i += 32) box[i] = 0;
}

// Rows of 16-bit elements, 64 * kPanels of them, as panels.
template <int kPanels>
DFA_DEVICE void load_panels(char* to, const void* from, int rows) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * 8 * kPanels; i += 128) {
    const int row = i / (8 * kPanels), chunk = i % (8 * kPanels);
    *reinterpret_cast<uint4*>(to + chunk / 8 * panel_bytes(rows) + row * kPanelRowBytes +
                              ((chunk % 8 ^ row % 8) << 4)) = static_cast<const uint4*>(from)[i];
  }
}

template <int kColumns>
DFA_DEVICE void put_fragments(const Args& args, const float (&d)[kColumns / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int n = 0; n < kColumns / 8; ++n) {
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 16 + lane / 4 + i / 2 * 8, column = n * 8 + lane % 4 * 2 + i % 2;
      static_cast<float*>(args.out)[row * kColumns + column] = d[n][i];
    }
  }
}

// Sums that a first product is not to keep.
template <int kFragments>
DFA_DEVICE void fill_with_nan(float (&d)[kFragments][4]) {
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) d[n][i] = __int_as_float(0x7fffffff);
  }
}

// out = a b^T, 64 rows of a, kColumns rows of b, both with 128 elements in two panels.
template <DType kElement, int kColumns>
__global__ void multiply_descriptors(const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) char smem[];
  char* b = smem + tile_bytes(64, 128);
  load_panels<2>(smem, args.a, 64);
  load_panels<2>(b, args.b, kColumns);
  ptx::fence_async();
  __syncthreads();
  const Descriptor left = k_in_columns(ptx::shared_address(smem));
  const Descriptor right = k_in_columns(ptx::shared_address(b));
  float d[kColumns / 8][4];
  fill_with_nan(d);
  ptx::pin(d);
  ptx::fence_products();
  ptx::multiply_shared<kElement, 0>(d, left.bits(), right.bits());
#pragma unroll
  for (int step = 1; step < 8; ++step) {
    ptx::multiply_shared<kElement, 1>(d, left.moved(column_step<64>(step)).bits(),
                                      right.moved(column_step<kColumns>(step)).bits());
  }
  ptx::commit_products();
  ptx::wait_products<0>();
  ptx::pin(d);
  put_fragments<kColumns>(args, d);
}

// out = a b^T, 64 rows of a in registers as they lie in a panel, kColumns rows of b, both with 64
// elements.
template <DType kElement, int kColumns>
__global__ void multiply_held(const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) char smem[];
  char* b = smem + tile_bytes(64, 64);
  load_panels<1>(smem, args.a, 64);
  load_panels<1>(b, args.b, kColumns);
  ptx::fence_async();
  __syncthreads();
  unsigned a[4][4];
  load_rows<64>(ptx::shared_address(smem), static_cast<int>(threadIdx.x) / 32 * 16, a);
  const Descriptor right = k_in_columns(ptx::shared_address(b));
  float d[kColumns / 8][4];
  fill_with_nan(d);
  ptx::pin(d);
  ptx::pin(a);
  ptx::fence_products();
  ptx::multiply_registers_rows<kElement, 0>(d, a[0], right.bits());
#pragma unroll
  for (int step = 1; step < 4; ++step) {
    ptx::multiply_registers_rows<kElement, 1>(d, a[step],
                                              right.moved(column_step<kColumns>(step)).bits());
  }
  ptx::commit_products();
  ptx::wait_products<0>();
  ptx::pin(d);
  ptx::pin(a);
  put_fragments<kColumns>(args, d);
}

// out = c + a b, a 64 x 32 through registers, b 32 x kColumns stored k by column.
template <DType kElement, int kColumns>
__global__ void multiply_values(const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) char smem[];
  constexpr int kPanels = panels(kColumns);
  load_panels<kPanels>(smem, args.b, 32);  // rows of b are padded to whole panels
  ptx::fence_async();
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  unsigned a[2][4];
  float d[kColumns / 8][4];
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 16 + lane / 4 + i % 2 * 8, pair = step * 8 + i / 2 * 4 + lane % 4;
      a[step][i] = static_cast<const unsigned*>(args.a)[row * 16 + pair];
    }
  }
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 16 + lane / 4 + i / 2 * 8, column = n * 8 + lane % 4 * 2 + i % 2;
      d[n][i] = static_cast<const float*>(args.c)[row * kColumns + column];
    }
  }
  const Descriptor right = k_in_rows<32>(ptx::shared_address(smem));
  ptx::pin(d);
  ptx::pin(a);
  ptx::fence_products();
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    ptx::multiply_registers<kElement>(d, a[step], right.moved(row_step(step)).bits());
    ptx::commit_products();
  }
  ptx::wait_products<1>();
  ptx::wait_products<0>();
  ptx::pin(d);
  ptx::pin(a);
  put_fragments<kColumns>(args, d);
}

}  // namespace dfa::probe
