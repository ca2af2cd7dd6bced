#pragma once

#include "kernels/backward/sm90_half_step.cuh"

// FlashAttention backward for sm_90a (wgmma, the copy engine), in fp16 and bf16.
//
// A thread block owns 128 keys of one key head and walks the queries that see them, from the last
// tile on, those of every query head that shares the key head one after another. Of its first
// warpgroup one warp starts copies and a thread acquires the dq semaphore for the block; each of
// two other warpgroups owns 64 keys. Everything is transposed, keys as rows, so that p and ds are
// left operands as they lie in registers:
//   p^T  = exp2(scale_log2 k q^T - lse_log2)      dv += p^T do
//   ds^T = p^T * (v do^T - delta)                 dk += ds^T q
//   dq^T += k^T ds^T                              ds^T of both warpgroups, through shared memory
// Life of a tile of queries: its k q^T is queued in the step before, behind that step's dq; its
// v do^T when that dq has left its registers; then, with the other products running meanwhile,
//   p       beside v do^T         ds     beside dv
//   the meeting of both warpgroups, once a step, beside dk
// Limits: d and dv up to 128; strides in multiples of 16 bytes.
namespace dfa {

template <BackwardConfig kConfig>
struct Sm90Backward {
  using Keys = Sm90Keys<kConfig>;
  using Dq = typename Keys::Dq;
  using Operand = typename Keys::Operand;
  using Shared = typename Keys::Shared;
  using Walk = typename Keys::Walk;
  using WorkTile = typename Keys::WorkTile;
  static constexpr int kBlockQ = kConfig.block_q;
  static constexpr int kBlockK = kConfig.block_k;
  static constexpr int kHalf = Keys::kHalf;
  static constexpr int kHalves = kBlockQ / kHalf;
  static constexpr int kDsBytes = tile_bytes(kBlockK, kBlockQ);  // of one of two buffers
  using HalfStep = Sm90HalfStep<kConfig>;
  using Sums = typename HalfStep::Sums;
  // Where registers last for reading lse a step ahead.
  static constexpr bool kLseAhead = kHalves == 1 || kConfig.value_dim <= 64;

  // Done in the step before where kLseAhead: a step's own reads of shared memory would stand behind
  // additions to dq.
  static DFA_DEVICE void await_tile(const Shared& shared, Sums& sums) {
    if constexpr (!HalfStep::kTextFirst) Keys::load_pairs(sums.lse, shared.lse());
    shared.d_o.wait_full();
  }

  // One tile of queries, that at `walk`. kMore: the next one's scores are queued meanwhile.
  template <bool kMore, typename AnyWalk, typename AnyShared>
  static DFA_DEVICE void step(const KernelArgs& args, const WorkTile& work, const AnyWalk& walk,
                              AnyShared& shared, unsigned ds, unsigned& phase, int group,
                              Sums& sums) {
    Operand p[kHalves], ds_rounded[kHalves];
    if constexpr (!kLseAhead) await_tile(shared, sums);
    ptx::wait_products<0>();
    ptx::pin(sums.p[0]);
    const int query = walk.tile * kBlockQ, key = work.key + group * kGroupRows;
    HalfStep::template run<0>(args, work.seq, walk.head, query, key, shared, ds, group, sums, p,
                              ds_rounded);
    if constexpr (kHalves == 2) {
      HalfStep::template run<1>(args, work.seq, walk.head, query, key, shared, ds, group, sums, p,
                                ds_rounded);
    }
    ptx::sync_warps(1, Keys::kThreads);  // all of ds is there

    ptx::wait_products<1>();
    ptx::pin(sums.dv);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) ptx::pin(p[h]);
    shared.d_o.release();
    shared.d_o.next();
    typename Dq::Share share;
    Keys::queue_dq(share, shared.base, ds, group);
    ptx::wait_products<1>();
    ptx::pin(sums.dk);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) ptx::pin(ds_rounded[h]);
    shared.q.release();
    shared.q.next();
    if constexpr (kMore) {
      shared.q.wait_full();
      HalfStep::queue_s(sums.p[0], sums, shared.base, group, shared.q.tile());
    }
    ptx::wait_products<kMore ? 1 : 0>();
    ptx::pin(share);

    if constexpr (kMore && kLseAhead) await_tile(shared, sums);
    if constexpr (Dq::kSerialized) ptx::wait(shared.acquired(), phase);
    Dq::add(args, {work.seq, walk.head}, walk.tile, work.key, group, share);
    if constexpr (Dq::kSerialized) {
      __syncwarp();
      if (ptx::thread_index() % 32 == 0) ptx::arrive(shared.added());
      phase ^= 1;
    }
    if constexpr (kMore) draw_ahead<true>(args, work, walk, shared, group, sums);
  }

  // Of a dropout, of the tile at `walk`, or of the one behind it.
  template <bool kBehind, typename AnyWalk, typename AnyShared>
  static DFA_DEVICE void draw_ahead(const KernelArgs& args, const WorkTile& work,
                                    const AnyWalk& walk, const AnyShared& shared, int group,
                                    Sums& sums) {
    HalfStep::template draw_ahead<kBehind>(args, work.seq, walk, work.key + group * kGroupRows,
                                           shared, group, sums);
  }

  static DFA_DEVICE void compute(const Sm90BackwardArgs& a, Shared shared, int group) {
    const WorkTile work = Keys::work_tile_of(a.args, shared);
    Sums sums;
    Keys::clear(sums.dk);
    Keys::clear(sums.dv);
    Walk walk = Walk::of(a.args, work);
    HalfStep::keep_seeing(sums, a.args, work.seq, work.key + group * kGroupRows);
    if (walk.any()) {
      ptx::wait(shared.k_full(), 0);
      HalfStep::hold_k(sums, shared.base, group);
      shared.q.wait_full();
      HalfStep::queue_s(sums.p[0], sums, shared.base, group, shared.q.tile());
      ptx::wait(shared.v_full(), 0);
      HalfStep::hold_v(sums, shared.base, group);
      if constexpr (kLseAhead) await_tile(shared, sums);
      draw_ahead<false>(a.args, work, walk, shared, group, sums);
      unsigned ds = shared.base + Keys::kDsAt, phase = 0;
#pragma unroll 1
      for (; !walk.is_last(); walk.next()) {
        step<true>(a.args, work, walk, shared, ds, phase, group, sums);
        ds = 2 * (shared.base + Keys::kDsAt) + kDsBytes - ds;  // the other buffer
      }
      step<false>(a.args, work, walk, shared, ds, phase, group, sums);
    }
    ptx::sync_warps(1, Keys::kThreads);  // all have read k
    Keys::store_gradients(a, shared, group, Keys::again(shared, work), sums.dk, sums.dv);
  }
};

template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_backward(const __grid_constant__ Sm90BackwardArgs a) {
  using Keys = Sm90Keys<kConfig>;
  extern __shared__ __align__(1024) char smem[];
  if constexpr (kConfig.varlen) {
    ptx::griddepcontrol_wait();
    if (!Keys::has_work_tile(a.args)) return;
  }
  if constexpr (kConfig.dq_fused()) {
    if (Keys::owns_none(a.args, ptx::shared_address(smem))) return;
  }
  const auto shared = Keys::shared_of(ptx::shared_address(smem));
  if (threadIdx.x == 0) {
    Keys::init(shared);
    Keys::tell_work_tile(a.args, shared);
  }
  __syncthreads();
  ptx::griddepcontrol_wait();
  const int group = __shfl_sync(ptx::kWholeWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    Keys::serve(a, shared);
  } else {
    ptx::setmaxnreg_inc<Keys::kTaken>();
    Sm90Backward<kConfig>::compute(a, shared, group - 1);
  }
}

}  // namespace dfa
