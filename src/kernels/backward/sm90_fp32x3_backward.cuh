#pragma once

#include "kernels/backward/sm90_dq_semaphore.cuh"
#include "kernels/backward/sm90_fp32x3_args.h"
#include "kernels/backward/sm90_fp32x3_delta.cuh"
#include "kernels/backward/sm90_fp32x3_dq.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/schedule/pipeline.cuh"
#include "kernels/schedule/query_walk.cuh"
#include "kernels/softmax/online_softmax.cuh"
#include "kernels/tile/fp32x3_product.cuh"
#include "kernels/tile/panel_rows.cuh"
#include "kernels/tile/split_copy.cuh"

// FlashAttention backward for sm_90a in fp32, by products of bf16 parts (tile/fp32x3_product.cuh).
// Scores are made of the same products, in the same order, as in sm90_fp32x3_forward: they have its
// bits, and at any scale exp(score - lse) is the weight that the forward gave.
//
// A thread block owns 64 keys of one key head and walks the queries that see them, from the last
// tile on, those of every query head that shares the key head one after another. Keys are rows, so
// that p and ds are left operands as they lie in registers. Two warpgroups have a gradient each:
//   weights    p^T  = exp(scale k q^T - lse)       dv += p^T do
//   gradients  ds^T = p^T * (v do^T - delta)       dk += ds^T q       dq = ds k
// Life of a tile of queries, products in brackets, of which the tensor cores always have some:
//   weights    [k q^T]  p, handed on    [p^T do]           waits for the next q, [k q^T]
//   gradients  [v do^T]               ds    [ds^T q]       [ds k], dq serialized
// p is handed on as it lies in registers, through the place where ds will lie: once in it, ds stays
// until dq is made. A tile's sums are added to those of all tiles in fp32 (fp32x3_product.cuh).
// Of the first warpgroup a warp copies q, one copies do, and a thread serves the dq semaphore.
// Limits: d and dv up to 128; planes as sm90_fp32x3_args.h has them.
namespace dfa {

template <BackwardConfig kConfig>
struct Sm90Fp32x3Backward {
  static constexpr int kBlockQ = kConfig.block_q;
  static constexpr int kBlockK = kGroupRows;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kThreads = 2 * kGroupThreads;  // that compute
  static constexpr int kQueries = kBlockQ / 8;        // fragments; likewise below
  static constexpr int kDims = kConfig.head_dim / 8;
  static constexpr int kValues = kConfig.value_dim / 8;
  static constexpr int kSteps = kBlockQ / 16;  // of a product
  static constexpr int kGiven = 24;            // registers of the first warpgroup
  static constexpr int kTaken = 240;
  using Dq = Sm90Fp32x3Dq<kConfig>;
  static_assert(kConfig.block_k == kBlockK && kConfig.dq_serialized());

  // Shared memory: planes of k, of v, stages of those of q, of do, ds, stages of lse and delta,
  // barriers.
  static constexpr int kVAt = kPlanes * tile_bytes(kBlockK, kConfig.head_dim);
  static constexpr int kQAt = kVAt + kPlanes * tile_bytes(kBlockK, kConfig.value_dim);
  static constexpr int kQBytes = kPlanes * tile_bytes(kBlockQ, kConfig.head_dim);
  static constexpr int kDoAt = kQAt + kStages * kQBytes;
  static constexpr int kDoBytes = kPlanes * tile_bytes(kBlockQ, kConfig.value_dim);
  static constexpr int kDsAt = kDoAt + kStages * kDoBytes;
  static constexpr int kDsPlane = tile_bytes(kBlockK, kBlockQ);
  static constexpr int kRowBytes = 4 * kBlockQ;
  static constexpr int kLseAt = kDsAt + kPlanes * kDsPlane;
  static constexpr int kDeltaAt = kLseAt + kStages * kRowBytes;
  static constexpr int kBarriersAt = kDeltaAt + kStages * kRowBytes;
  static_assert(kBarriersAt + 8 * (4 + 2 * kStages) == kConfig.smem_bytes());
  static_assert(4 * kBlockK * kBlockQ <= kPlanes * kDsPlane);  // p fits

  // Named barriers: 0 of the block, these, then those of the rings.
  static constexpr unsigned kPThere = 1, kPlaceFree = 2, kGradients = 3, kFirstOfRings = 4;
  using Ring = SharedPipeline<kStages, kThreads>;

  struct Shared {
    unsigned base;
    Ring q, d_o;

    DFA_DEVICE unsigned barrier(int i) const { return base + kBarriersAt + 8 * i; }
    DFA_DEVICE unsigned k_full() const { return barrier(0); }
    DFA_DEVICE unsigned v_full() const { return barrier(1); }
    DFA_DEVICE unsigned acquired() const { return barrier(2); }  // this block may add
    DFA_DEVICE unsigned added() const { return barrier(3); }     // all warps have
    DFA_DEVICE unsigned v() const { return base + kVAt; }
    DFA_DEVICE unsigned ds() const { return base + kDsAt; }
    DFA_DEVICE unsigned lse() const { return base + kLseAt + q.stage * kRowBytes; }
    DFA_DEVICE unsigned delta() const { return base + kDeltaAt + d_o.stage * kRowBytes; }
  };

  static DFA_DEVICE Shared shared_of(unsigned base) {
    const unsigned rings = base + kBarriersAt + 32;
    return {base,
            {base + kQAt, rings, kFirstOfRings, kQBytes},
            {base + kDoAt, rings + 8 * kStages, kFirstOfRings + kStages, kDoBytes}};
  }

  static DFA_DEVICE void init(const Shared& shared) {
    ptx::init_barrier(shared.k_full(), 1);
    ptx::init_barrier(shared.v_full(), 1);
    ptx::init_barrier(shared.acquired(), 1);
    ptx::init_barrier(shared.added(), kGroupThreads / 32);
    shared.q.init();
    shared.d_o.init();
    ptx::fence_barrier_init();
  }

  static DFA_DEVICE KeyWorkTile<> work_tile_of(const KernelArgs& args) {
    return key_work_tile<kBlockK, true>(args, ptx::block_index());
  }

  using Walk = QueryWalk<TileMask, kBlockK, kBlockQ>;

  // The warps that copy, and the thread that acquires and releases the dq semaphore.

  static DFA_DEVICE bool starts_copies() { return ptx::thread_index() % 32 == 0; }

  template <int kColumns>
  static DFA_DEVICE void load_keys(unsigned to, const TensorMap& map, unsigned barrier,
                                   const KernelArgs& args, const KeyWorkTile<>& work) {
    if (!starts_copies()) return;
    ptx::arrive_expecting(barrier, kPlanes * tile_bytes(kBlockK, kColumns));
    load_planes<kBlockK, kColumns>(to, map, barrier, work.key, work.head, work.seq.batch, args.b);
  }

  template <int kColumns>
  static DFA_DEVICE void load_queries(const Ring& ring, const TensorMap& map, unsigned to_rows,
                                      const float* rows, const KernelArgs& args,
                                      const KeyWorkTile<>& work, const Walk& walk) {
    ring.wait_empty();
    if (!starts_copies()) return;
    ptx::arrive_expecting(ring.full(), kPlanes * tile_bytes(kBlockQ, kColumns) + kRowBytes);
    load_planes<kBlockQ, kColumns>(ring.tile(), map, ring.full(), walk.tile * kBlockQ, walk.head,
                                   work.seq.batch, args.b);
    const long long head = static_cast<long long>(work.seq.batch) * args.hq + walk.head;
    ptx::load_bytes(to_rows, rows + head * args.padded_sq + walk.tile * kBlockQ, kRowBytes,
                    ring.full());
  }

  static DFA_DEVICE void copy_q(const Sm90Fp32x3BackwardArgs& a, Shared shared) {
    const KeyWorkTile<> work = work_tile_of(a.args);
    Walk walk = Walk::of(a.args, work);
    if (!walk.any()) return;
    load_keys<kConfig.head_dim>(shared.base, a.k, shared.k_full(), a.args, work);
    for (; walk.more(); walk.next(), shared.q.next()) {
      load_queries<kConfig.head_dim>(shared.q, a.q, shared.lse(), a.args.lse_log2, a.args, work,
                                     walk);
    }
    shared.q.wait_all_empty();
  }

  static DFA_DEVICE void copy_do(const Sm90Fp32x3BackwardArgs& a, Shared shared) {
    const KeyWorkTile<> work = work_tile_of(a.args);
    Walk walk = Walk::of(a.args, work);
    if (!walk.any()) return;
    load_keys<kConfig.value_dim>(shared.v(), a.v, shared.v_full(), a.args, work);
    for (; walk.more(); walk.next(), shared.d_o.next()) {
      load_queries<kConfig.value_dim>(shared.d_o, a.d_o, shared.delta(), a.args.delta, a.args, work,
                                      walk);
    }
    shared.d_o.wait_all_empty();
  }

  static DFA_DEVICE void serve_dq_semaphore(const KernelArgs& args, const Shared& shared) {
    const KeyWorkTile<> work = work_tile_of(args);
    unsigned phase = 0;
    dfa::serve_dq_semaphore<Dq>(args, work, Walk::of(args, work), shared.acquired(), shared.added(),
                                phase);
  }

  // Both warpgroups that compute.

  using Scores = Sum<1, kQueries>;

  // Of the 64 keys, those of this warp.
  static DFA_DEVICE int warp_row() { return static_cast<int>(ptx::thread_index() / 32 % 4) * 16; }

  // A lane's values of lse or delta: two queries of fragment n.
  static DFA_DEVICE float2 pair_of(unsigned rows, int n) {
    return ptx::load_shared_2(rows + ptx::thread_index() % 4 * 8 + n * 32);
  }

  // Where a thread hands four of its weights to the thread that has them in the other warpgroup.
  static DFA_DEVICE unsigned handed(const Shared& shared, int n) {
    return shared.ds() + (n * kGroupThreads + ptx::thread_index() % kGroupThreads) * 16;
  }

  // sum += weights^T times the rows of a tile.
  template <int kFragments>
  static DFA_DEVICE void accumulate(float (&sum)[kFragments][4], Fp32x3Operand<kSteps>& weights,
                                    unsigned tile) {
    float of_tile[kFragments][4];
    multiply_fp32x3_values<kFragments, kSteps>(of_tile, weights, tile);
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] += of_tile[n][i];
    }
  }

  template <int kFragments>
  static DFA_DEVICE void store(void* gradient, const KernelStrides& strides, int columns,
                               const KernelArgs& args, const KeyWorkTile<>& work,
                               const float (&sum)[kFragments][4], float factor) {
    const int lane = static_cast<int>(ptx::thread_index() % 32);
    float* head =
        static_cast<float*>(gradient) + work.seq.batch * strides.batch + work.head * strides.head;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = work.key + warp_row() + half * 8 + lane / 4;
      if (key >= args.sk) continue;
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        if (column >= columns) continue;
        *reinterpret_cast<float2*>(head + key * strides.row + column) =
            make_float2(sum[n][2 * half] * factor, sum[n][2 * half + 1] * factor);
      }
    }
  }

  // The warpgroup of weights.

  static DFA_DEVICE void exp2(Scores& scores, const KernelArgs& args, const KeyWorkTile<>& work,
                              int query, unsigned lse) {
    const TileMask mask = TileMask::of(args);
    if (mask.needs(query, kBlockQ, work.key, kBlockK)) {
      hide_masked_transposed(scores, mask, work.key + warp_row(), query, PlainLogits::hidden(args));
    }
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      const float2 of_pair = pair_of(lse, n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[0][n][i] =
            probability<DType::fp32>(args, scores[0][n][i], i % 2 ? of_pair.y : of_pair.x);
      }
    }
  }

  static DFA_DEVICE void compute_weights(const Sm90Fp32x3BackwardArgs& a, Shared shared) {
    const KernelArgs& args = a.args;
    const KeyWorkTile<> work = work_tile_of(args);
    Sum<1, kValues> dv;
    clear(dv);
    Walk walk = Walk::of(args, work);
    if (walk.any()) ptx::wait(shared.k_full(), 0);
#pragma unroll 1
    for (bool first = true; walk.any() && walk.more(); walk.next(), first = false) {
      Scores p;
      shared.q.wait_full();
      multiply_fp32x3_scores<kConfig.head_dim, Factors::swapped>(p[0], shared.base,
                                                                 shared.q.tile());
      exp2(p, args, work, walk.tile * kBlockQ, shared.lse());
      shared.q.release();
      shared.q.next();

      if (!first) ptx::sync_warps(kPlaceFree, kThreads);
#pragma unroll
      for (int n = 0; n < kQueries; ++n) ptx::store_shared_4(handed(shared, n), p[0][n]);
      ptx::arrive_warps(kPThere, kThreads);

      Fp32x3Operand<kSteps> weights;
      fp32x3_operand<kSteps>(weights, p[0]);
      shared.d_o.wait_full();
      accumulate(dv[0], weights, shared.d_o.tile());
      shared.d_o.release();
      shared.d_o.next();
    }
    store(args.dv, args.v_strides, args.d_v, args, work, dv[0], 1);
  }

  // The warpgroup of gradients.

  static DFA_DEVICE void differentiate(Scores& dp, const Shared& shared) {
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      const float4 p = ptx::load_shared_4(handed(shared, n));
      const float2 delta = pair_of(shared.delta(), n);
      dp[0][n][0] = p.x * (dp[0][n][0] - delta.x);
      dp[0][n][1] = p.y * (dp[0][n][1] - delta.y);
      dp[0][n][2] = p.z * (dp[0][n][2] - delta.x);
      dp[0][n][3] = p.w * (dp[0][n][3] - delta.y);
    }
  }

  static DFA_DEVICE void multiply_dq(typename Dq::Share& share, const Shared& shared) {
#pragma unroll
    for (int half = 0; half < Dq::kHalves; ++half) ptx::pin(share[half]);
    ptx::fence_products();
#pragma unroll
    for (int half = 0; half < Dq::kHalves; ++half) {
      queue_fp32x3_transposed<kConfig.head_dim, kDsPlane, 0>(
          share[half], shared.ds() + half * panel_bytes(kBlockK), shared.base);
    }
    ptx::commit_products();
    ptx::wait_products<0>();
#pragma unroll
    for (int half = 0; half < Dq::kHalves; ++half) ptx::pin(share[half]);
  }

  static DFA_DEVICE void add_serialized(const KernelArgs& args, const KeyWorkTile<>& work,
                                        const Walk& walk, const Shared& shared, unsigned phase,
                                        const typename Dq::Share& share) {
    ptx::wait(shared.acquired(), phase);
    Dq::add(args, {work.seq, walk.head}, walk.tile, work.key, share);
    __syncwarp();
    if (ptx::thread_index() % 32 == 0) ptx::arrive(shared.added());
  }

  static DFA_DEVICE void compute_gradients(const Sm90Fp32x3BackwardArgs& a, Shared shared) {
    const KernelArgs& args = a.args;
    const KeyWorkTile<> work = work_tile_of(args);
    Sum<1, kDims> dk;
    clear(dk);
    Walk walk = Walk::of(args, work);
    if (walk.any()) {
      ptx::wait(shared.k_full(), 0);
      ptx::wait(shared.v_full(), 0);
    }
    unsigned phase = 0;
#pragma unroll 1
    for (; walk.any() && walk.more(); walk.next(), phase ^= 1) {
      Scores ds;  // first dp
      shared.d_o.wait_full();
      multiply_fp32x3_scores<kConfig.value_dim, Factors::swapped>(ds[0], shared.v(),
                                                                  shared.d_o.tile());
      ptx::sync_warps(kPThere, kThreads);
      differentiate(ds, shared);
      shared.d_o.release();
      shared.d_o.next();

      Fp32x3Operand<kSteps> weights;
      fp32x3_operand<kSteps>(weights, ds[0]);
      ptx::sync_warps(kGradients, kGroupThreads);  // all have read p
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
        store_rows<kBlockK>(shared.ds() + plane * kDsPlane, warp_row(), weights[plane]);
      }
      ptx::fence_async();
      shared.q.wait_full();
      accumulate(dk[0], weights, shared.q.tile());
      shared.q.release();
      shared.q.next();

      ptx::sync_warps(kGradients, kGroupThreads);  // all of ds is there
      typename Dq::Share share;
      multiply_dq(share, shared);
      if (!walk.is_last()) ptx::arrive_warps(kPlaceFree, kThreads);
      add_serialized(args, work, walk, shared, phase, share);
    }
    store(args.dk, args.k_strides, args.d, args, work, dk[0], args.scale);
  }
};

template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_fp32x3_backward(const __grid_constant__ Sm90Fp32x3BackwardArgs a) {
  using Kernel = Sm90Fp32x3Backward<kConfig>;
  extern __shared__ __align__(1024) char smem[];
  const auto shared = Kernel::shared_of(ptx::shared_address(smem));
  if (threadIdx.x == 0) Kernel::init(shared);
  __syncthreads();
  const int group = __shfl_sync(ptx::kWholeWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    ptx::setmaxnreg_dec<Kernel::kGiven>();
    const int warp = __shfl_sync(ptx::kWholeWarp, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == 0) Kernel::copy_q(a, shared);
    if (warp == 1) Kernel::copy_do(a, shared);
    if (threadIdx.x == 64) Kernel::serve_dq_semaphore(a.args, shared);
  } else {
    ptx::setmaxnreg_inc<Kernel::kTaken>();
    if (group == 1) Kernel::compute_weights(a, shared);
    if (group == 2) Kernel::compute_gradients(a, shared);
  }
}

}  // namespace dfa
