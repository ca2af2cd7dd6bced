#pragma once

#include "kernels/forward/sm90_fp32x3_args.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/schedule/pipeline.cuh"
#include "kernels/schedule/query_work_tile.cuh"
#include "kernels/softmax/online_softmax.cuh"
#include "kernels/tile/fp32x3_product.cuh"
#include "kernels/tile/split_copy.cuh"
#include "spec/forward_config.h"

// FlashAttention forward for sm_90a in fp32, by products of bf16 parts (tile/fp32x3_product.cuh).
//
// A thread block owns 64 queries for each of its warpgroups but the first, of which one thread
// starts copies. A tile's scores are one sum; its weights times v are a sum of their own, which is
// added to the output in fp32: the tensor cores cut where they add, and over many tiles that
// would add up.
// Limits: d, dv up to 128; planes as sm90_fp32x3_args.h has them.
namespace dfa {

template <ForwardConfig kConfig>
struct Sm90Fp32x3Forward {
  static constexpr int kBlockK = kConfig.block_k;
  static constexpr int kGroups = kConfig.block_q / kGroupRows;
  static constexpr int kSteps = kBlockK / 16;  // of a product
  static constexpr int kKeys = kBlockK / 8;    // fragments
  static constexpr int kValues = kConfig.value_dim / 8;

  // Shared memory: planes of q (a group's behind the other's), stages of planes of k, of v,
  // barriers.
  static constexpr int kQPlane = tile_bytes(kGroupRows, kConfig.head_dim);
  static constexpr int kQGroup = kPlanes * kQPlane;
  static constexpr int kKPlane = tile_bytes(kBlockK, kConfig.head_dim);
  static constexpr int kVPlane = tile_bytes(kBlockK, kConfig.value_dim);
  static constexpr int kKAt = kGroups * kQGroup;
  static constexpr int kVAt = kKAt + kConfig.stages * kPlanes * kKPlane;
  static constexpr int kBarriersAt = kVAt + kConfig.stages * kPlanes * kVPlane;
  static_assert(kBarriersAt + 16 + 32 * kConfig.stages == kConfig.smem_bytes());

  using Ring = Pipeline<kConfig.stages, 4 * kGroups>;  // one lane of every warp arrives
  struct Rings {
    unsigned smem;
    Ring k, v;

    DFA_DEVICE unsigned q_full() const { return smem + kBarriersAt; }
  };

  static DFA_DEVICE Rings rings(unsigned smem) {
    const unsigned barriers = smem + kBarriersAt + 16;
    return {smem,
            {smem + kKAt, barriers, kPlanes * kKPlane},
            {smem + kVAt, barriers + 16 * kConfig.stages, kPlanes * kVPlane}};
  }

  static DFA_DEVICE TileRange tiles_of(const KernelArgs& args, const QueryWorkTile<false>& work) {
    return key_tiles(TileMask::of(args), work.query, kConfig.block_q, kBlockK);
  }

  // The copying thread.

  template <int kColumns>
  static DFA_DEVICE void load_keys(const TensorMap& map, const KernelArgs& args,
                                   const QueryWorkTile<false>& work, int tile, Ring& ring) {
    ring.wait_empty();
    ptx::arrive_expecting(ring.full(), kPlanes * tile_bytes(kBlockK, kColumns));
    load_planes<kBlockK, kColumns>(ring.tile(), map, ring.full(), tile * kBlockK, work.kv_head,
                                   work.seq.batch, args.b);
    ring.next();
  }

  static DFA_DEVICE void copy(const Sm90Fp32x3Args& a, Rings rings) {
    const auto work = query_work_tile<kConfig.block_q, false>(a.args, blockIdx.x);
    const TileRange tiles = tiles_of(a.args, work);
    if (tiles.begin >= tiles.end) return;
    ptx::arrive_expecting(rings.q_full(), kGroups * kQGroup);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      load_planes<kGroupRows, kConfig.head_dim>(rings.smem + group * kQGroup, a.q, rings.q_full(),
                                                work.query + group * kGroupRows, work.head,
                                                work.seq.batch, a.args.b);
    }
#pragma unroll 1
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      load_keys<kConfig.head_dim>(a.k, a.args, work, tile, rings.k);
      load_keys<kConfig.value_dim>(a.v, a.args, work, tile, rings.v);
    }
  }

  // A warpgroup with queries.

  using Output = float[kValues][4];

  static DFA_DEVICE void store(const KernelArgs& args, const QueryWorkTile<false>& work, int row,
                               const Output& output, const float (&inverse)[1][2],
                               const float (&lse)[1][2]) {
    const int lane = static_cast<int>(ptx::thread_index() % 32);
    float* head = static_cast<float*>(args.o) + work.seq.batch * args.o_strides.batch +
                  work.head * args.o_strides.head;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = row + half * 8 + lane / 4;
      if (query >= args.sq) continue;
      if (args.lse != nullptr && lane % 4 == 0) {
        args.lse[(static_cast<long long>(work.seq.batch) * args.hq + work.head) * args.sq + query] =
            lse[0][half];
      }
#pragma unroll
      for (int n = 0; n < kValues; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        if (column >= args.d_v) continue;
        *reinterpret_cast<float2*>(head + query * args.o_strides.row + column) = make_float2(
            output[n][2 * half] * inverse[0][half], output[n][2 * half + 1] * inverse[0][half]);
      }
    }
  }

  static DFA_DEVICE void compute(const Sm90Fp32x3Args& a, Rings rings, int group) {
    const KernelArgs& args = a.args;
    const auto work = query_work_tile<kConfig.block_q, false>(args, ptx::block_index());
    const TileMask mask = TileMask::of(args);
    const TileRange tiles = tiles_of(args, work);
    const int query = work.query + group * kGroupRows;
    const int row = query + static_cast<int>(ptx::thread_index() / 32 % 4) * 16;
    const unsigned q = rings.smem + group * kQGroup;
    Sum<1, kValues> output;
    clear(output);
    OnlineSoftmax<1, kStepwise<DType::fp32>> softmax(args);
    if (tiles.begin < tiles.end) ptx::wait(rings.q_full(), 0);
#pragma unroll 1
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      Sum<1, kKeys> scores;
      rings.k.wait_full();
      multiply_fp32x3_scores<kConfig.head_dim, Factors::as_they_are>(scores[0], q, rings.k.tile());
      rings.k.release();
      rings.k.next();
      softmax.orient(scores);
      if (mask.needs(query, kGroupRows, tile * kBlockK, kBlockK)) {
        hide_masked(scores, mask, row, tile * kBlockK, -ptx::infinity());
      }
      softmax.step(scores, output);
      Fp32x3Operand<kSteps> weights;
      fp32x3_operand<kSteps>(weights, scores[0]);
      Output sum;
      rings.v.wait_full();
      multiply_fp32x3_values<kValues, kSteps>(sum, weights, rings.v.tile());
      rings.v.release();
      rings.v.next();
#pragma unroll
      for (int n = 0; n < kValues; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) output[0][n][i] += sum[n][i];
      }
    }
    float inverse[1][2], lse[1][2];
    softmax.finish(inverse, lse);
    store(args, work, row, output[0], inverse, lse);
  }
};

template <ForwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_fp32x3_forward(const __grid_constant__ Sm90Fp32x3Args a) {
  using Kernel = Sm90Fp32x3Forward<kConfig>;
  extern __shared__ __align__(1024) char smem[];
  const auto rings = Kernel::rings(ptx::shared_address(smem));
  if (threadIdx.x == 0) {
    ptx::init_barrier(rings.q_full(), 1);
    rings.k.init();
    rings.v.init();
    ptx::fence_barrier_init();
  }
  __syncthreads();
  const int group = __shfl_sync(ptx::kWholeWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    ptx::setmaxnreg_dec<kConfig.copier_registers()>();
    if (threadIdx.x == 0) Kernel::copy(a, rings);
  } else {
    ptx::setmaxnreg_inc<kConfig.query_registers()>();
    Kernel::compute(a, rings, group - 1);
  }
}

}  // namespace dfa
