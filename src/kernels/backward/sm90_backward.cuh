#pragma once

#include "kernels/backward/sm90_args.h"
#include "kernels/backward/sm90_dq.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/schedule/key_work.cuh"
#include "kernels/schedule/stage_ring.cuh"
#include "kernels/softmax/online_softmax.cuh"

// FlashAttention backward for sm_90a (wgmma, the copy engine), in fp16 and bf16.
//
// A thread block owns 128 keys of one key head and walks the queries that see them, from the last
// tile on, those of every query head that shares the key head one after another. Of its first
// warpgroup one warp starts copies and a thread waits for the block's turn to add to dq; each of
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
  static constexpr DType kElement = kConfig.element;
  static constexpr int kBlockQ = kConfig.block_q;
  static constexpr int kBlockK = kConfig.block_k;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kGroups = kBlockK / kGroupRows;
  static constexpr int kThreads = kGroups * kGroupThreads;  // that compute
  static constexpr int kHalf = 64;                          // queries whose scores are one product
  static constexpr int kHalves = kBlockQ / kHalf;
  static constexpr int kQueries = kHalf / 8;  // fragments; likewise below
  static constexpr int kDims = kConfig.head_dim / 8;
  static constexpr int kValues = kConfig.value_dim / 8;
  static constexpr int kSteps = kHalf / 16;  // of a product
  static constexpr int kGiven = 24;          // registers of the first warpgroup
  static constexpr int kTaken = 240;
  static constexpr int kWarps = 4 * kGroups;
  // Where registers last for reading delta while dp is made, and lse a step ahead.
  static constexpr bool kDeltaEarly = kHalves == 2 && kConfig.value_dim <= 64;
  static constexpr bool kLseAhead = kHalves == 1 || kConfig.value_dim <= 64;
  using Dq = Sm90Dq<kConfig>;

  // Shared memory: k, v, stages of q, of do, two buffers of ds, stages of lse and delta, barriers.
  static constexpr int kVAt = tile_bytes(kBlockK, kConfig.head_dim);
  static constexpr int kQAt = kVAt + tile_bytes(kBlockK, kConfig.value_dim);
  static constexpr int kQBytes = tile_bytes(kBlockQ, kConfig.head_dim);
  static constexpr int kDoAt = kQAt + kStages * kQBytes;
  static constexpr int kDoBytes = tile_bytes(kBlockQ, kConfig.value_dim);
  static constexpr int kDsAt = kDoAt + kStages * kDoBytes;
  static constexpr int kDsBytes = tile_bytes(kBlockK, kBlockQ);
  static constexpr int kRowBytes = 4 * kBlockQ;
  static constexpr int kLseAt = kDsAt + 2 * kDsBytes;
  static constexpr int kDeltaAt = kLseAt + kStages * kRowBytes;
  static constexpr int kBarriersAt = kDeltaAt + kStages * kRowBytes;
  static_assert(kBarriersAt + 8 * (4 + 2 * kStages) == kConfig.smem_bytes());

  // Named barriers: 0 of the block, 1 of all who compute, then those of the rings.
  using Ring = SharedStageRing<kStages, kThreads>;

  struct Shared {
    unsigned base;
    Ring q, d_o;

    DFA_DEVICE unsigned barrier(int i) const { return base + kBarriersAt + 8 * i; }
    DFA_DEVICE unsigned k_full() const { return barrier(0); }
    DFA_DEVICE unsigned v_full() const { return barrier(1); }
    DFA_DEVICE unsigned turn() const { return barrier(2); }   // this block may add
    DFA_DEVICE unsigned added() const { return barrier(3); }  // all warps have
    DFA_DEVICE unsigned lse() const { return base + kLseAt + q.stage * kRowBytes; }
    DFA_DEVICE unsigned delta() const { return base + kDeltaAt + d_o.stage * kRowBytes; }
  };

  static DFA_DEVICE Shared shared_of(unsigned base) {
    const unsigned rings = base + kBarriersAt + 32;
    return {base,
            {base + kQAt, rings, 2, kQBytes},
            {base + kDoAt, rings + 8 * kStages, 2 + kStages, kDoBytes}};
  }

  static DFA_DEVICE void init(const Shared& shared) {
    ptx::init_barrier(shared.k_full(), 1);
    ptx::init_barrier(shared.v_full(), 1);
    ptx::init_barrier(shared.turn(), 1);
    ptx::init_barrier(shared.added(), kWarps);
    shared.q.init();
    shared.d_o.init();
    ptx::fence_barrier_init();
  }

  static DFA_DEVICE KeyWork work_of(const KernelArgs& args) {
    return key_work<kBlockK, Dq::kOrdered>(args, ptx::block_index());
  }

  // The steps of a block: tiles of queries from the last, for one query head after the other.
  struct Walk {
    TileRange tiles;
    int tile, head, last_head;

    static DFA_DEVICE Walk of(const KernelArgs& args, const KeyWork& work) {
      const TileRange tiles = query_tiles(TileMask::of(args), work.key, kBlockK, kBlockQ);
      const int group = args.hq / args.hk;
      return {tiles, tiles.end - 1, work.head * group, work.head * group + group - 1};
    }
    DFA_DEVICE bool any() const { return tiles.begin < tiles.end; }
    DFA_DEVICE bool is_last() const { return head == last_head && tile == tiles.begin; }
    DFA_DEVICE bool more() const { return head <= last_head; }
    DFA_DEVICE void next() {
      if (--tile < tiles.begin) {
        tile = tiles.end - 1;
        ++head;
      }
    }
  };

  // The copying warp.

  static DFA_DEVICE bool starts_copies() { return ptx::thread_index() % 32 == 0; }

  template <int kRows, int kColumns>
  static DFA_DEVICE void load_tile(unsigned to, const TensorMap& map, unsigned barrier, int row,
                                   int head, int batch) {
#pragma unroll
    for (int panel = 0; panel < panels(kColumns); ++panel) {
      ptx::load_box(to + panel * panel_bytes(kRows), map, barrier, panel * kPanelColumns, row, head,
                    batch);
    }
  }

  template <int kColumns>
  static DFA_DEVICE void load_queries(const Ring& ring, const TensorMap& map, unsigned to_rows,
                                      const float* rows, const KernelArgs& args,
                                      const KeyWork& work, const Walk& walk) {
    ring.wait_empty();
    if (!starts_copies()) return;
    ptx::arrive_expecting(ring.full(), tile_bytes(kBlockQ, kColumns) + kRowBytes);
    load_tile<kBlockQ, kColumns>(ring.tile(), map, ring.full(), walk.tile * kBlockQ, walk.head,
                                 work.batch);
    const long long head = static_cast<long long>(work.batch) * args.hq + walk.head;
    ptx::load_bytes(to_rows, rows + head * args.padded_sq + walk.tile * kBlockQ, kRowBytes,
                    ring.full());
  }

  static DFA_DEVICE void copy(const Sm90BackwardArgs& a, Shared shared) {
    const KeyWork work = work_of(a.args);
    Walk walk = Walk::of(a.args, work);
    if (!walk.any()) return;
    if (starts_copies()) {
      ptx::arrive_expecting(shared.k_full(), tile_bytes(kBlockK, kConfig.head_dim));
      load_tile<kBlockK, kConfig.head_dim>(shared.base, a.k, shared.k_full(), work.key, work.head,
                                           work.batch);
      ptx::arrive_expecting(shared.v_full(), tile_bytes(kBlockK, kConfig.value_dim));
      load_tile<kBlockK, kConfig.value_dim>(shared.base + kVAt, a.v, shared.v_full(), work.key,
                                            work.head, work.batch);
    }
    for (; walk.more(); walk.next()) {
      load_queries<kConfig.head_dim>(shared.q, a.q, shared.lse(), a.args.lse_log2, a.args, work,
                                     walk);
      load_queries<kConfig.value_dim>(shared.d_o, a.d_o, shared.delta(), a.args.delta, a.args, work,
                                      walk);
      shared.q.next();
      shared.d_o.next();
    }
    shared.d_o.wait_all_empty();
    shared.q.wait_all_empty();
  }

  // The thread that waits for turns and passes them on.
  static DFA_DEVICE void keep_turns(const KernelArgs& args, const Shared& shared) {
    const KeyWork work = work_of(args);
    unsigned phase = 0;
    for (Walk walk = Walk::of(args, work); walk.any() && walk.more(); walk.next()) {
      const typename Dq::Head head{work.batch, walk.head};
      if (Dq::starts_turn(walk.tile, walk.tiles.end)) Dq::wait(args, head, walk.tile, work.key);
      ptx::arrive(shared.turn());
      ptx::wait(shared.added(), phase);
      phase ^= 1;
      if (Dq::ends_turn(walk.tile, walk.tiles.begin)) {
        Dq::pass_on(args, head, walk.tile, work.key);
      }
    }
  }

  // A warpgroup with keys.

  using Scores = float[kQueries][4];
  using Operand = unsigned[kSteps][4];
  using Pairs = float2[kQueries];  // a lane's values of lse or delta: two queries of a fragment

  struct Sums {
    float dk[kDims][4], dv[kValues][4];
    Scores p[kHalves];  // of the tile under way, first its scores
    Pairs lse;          // of its first half, read a step ahead
  };

  template <int kFragments>
  static DFA_DEVICE void clear(float (&sum)[kFragments][4]) {
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] = 0;
    }
  }

  // 64 rows of keys, from `rows` on, times a tile of queries.
  template <int kColumns>
  static DFA_DEVICE void queue_scores(Scores& scores, unsigned rows, unsigned queries) {
    const Descriptor left = k_in_columns(rows), right = k_in_columns(queries);
    ptx::pin(scores);
    ptx::fence_products();
    ptx::multiply_shared<kElement, 0>(scores, left.bits(), right.bits());
#pragma unroll
    for (int step = 1; step < kColumns / 16; ++step) {
      ptx::multiply_shared<kElement, 1>(scores, left.moved(column_step<kBlockK>(step)).bits(),
                                        right.moved(column_step<kBlockQ>(step)).bits());
    }
    ptx::commit_products();
  }

  // kFirst: no product of this sum is under way.
  template <bool kFirst, int kFragments>
  static DFA_DEVICE void queue_gradient(float (&sum)[kFragments][4], Operand& left,
                                        unsigned queries) {
    const Descriptor right = k_in_rows<kBlockQ>(queries);
    if constexpr (kFirst) ptx::pin(sum);
    ptx::pin(left);
    ptx::fence_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::multiply_registers<kElement>(sum, left[step], right.moved(row_step(step)).bits());
    }
    ptx::commit_products();
  }

  static DFA_DEVICE void queue_dq(typename Dq::Share& share, unsigned keys, unsigned ds,
                                  int group) {
    const Descriptor left = k_in_rows<kBlockK>(keys + Dq::panel(group) * panel_bytes(kBlockK));
    const Descriptor right = k_in_rows<kBlockK>(
        ds + Dq::part(group) * (Dq::kQueries / kPanelColumns) * panel_bytes(kBlockK));
    ptx::pin(share);
    ptx::fence_products();
    ptx::multiply_transposed<kElement, 0>(share, left.bits(), right.bits());
#pragma unroll
    for (int step = 1; step < kBlockK / 16; ++step) {
      ptx::multiply_transposed<kElement, 1>(share, left.moved(row_step(step)).bits(),
                                            right.moved(row_step(step)).bits());
    }
    ptx::commit_products();
  }

  static DFA_DEVICE void round(Operand& rounded, const Scores& scores) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      rounded[k][0] = ptx::pack<kElement>(scores[2 * k][0], scores[2 * k][1]);
      rounded[k][1] = ptx::pack<kElement>(scores[2 * k][2], scores[2 * k][3]);
      rounded[k][2] = ptx::pack<kElement>(scores[2 * k + 1][0], scores[2 * k + 1][1]);
      rounded[k][3] = ptx::pack<kElement>(scores[2 * k + 1][2], scores[2 * k + 1][3]);
    }
  }

  // Of the 64 keys that a warpgroup owns, those of this warp.
  static DFA_DEVICE int warp_row() { return static_cast<int>(ptx::thread_index() / 32 % 4) * 16; }

  static DFA_DEVICE void load_pairs(Pairs& pairs, unsigned rows) {
    const unsigned from = rows + ptx::thread_index() % 4 * 8;
#pragma unroll
    for (int n = 0; n < kQueries; ++n) pairs[n] = ptx::load_shared_2(from + n * 32);
  }

  static DFA_DEVICE void hide(Scores& scores, const KernelArgs& args, int query, int key) {
    const TileMask mask = TileMask::of(args);
    if (!mask.needs(query, kHalf, key, kGroupRows)) return;
    hide_masked_transposed(reinterpret_cast<Sum<1, kQueries>&>(scores), mask, key + warp_row(),
                           query, hidden_score(args));
  }

  static DFA_DEVICE void weigh(Scores& scores, float scale_log2, const Pairs& lse) {
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = ptx::exp2(fmaf(scores[n][i], scale_log2, -(i % 2 ? lse[n].y : lse[n].x)));
      }
    }
  }

  // delta_of(n): the pair of fragment n.
  template <typename DeltaOf>
  static DFA_DEVICE void differentiate(Scores& dp, const Scores& p, const DeltaOf& delta_of) {
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      const float2 delta = delta_of(n);
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[n][i] = p[n][i] * (dp[n][i] - (i % 2 ? delta.y : delta.x));
    }
  }

  // Waits for dp; kBehind groups of products behind it stay under way. `pairs` may be overwritten.
  template <int kBehind>
  static DFA_DEVICE void make_ds(Scores& dp, const Scores& p, unsigned delta, Pairs& pairs) {
    if constexpr (kDeltaEarly) {
      load_pairs(pairs, delta);
      ptx::wait_products<kBehind>();
      ptx::pin(dp);
      differentiate(dp, p, [&](int n) { return pairs[n]; });
    } else {
      ptx::wait_products<kBehind>();
      ptx::pin(dp);
      const unsigned from = delta + ptx::thread_index() % 4 * 8;
      differentiate(dp, p, [&](int n) { return ptx::load_shared_2(from + n * 32); });
    }
  }

  // A warp's 16 rows of a tile of kRows.
  template <int kRows, int kColumnSteps>
  static DFA_DEVICE void store_rows(unsigned tile, int first,
                                    const unsigned (&rows)[kColumnSteps][4]) {
    const unsigned lane = ptx::thread_index() % 32;
    const unsigned row = static_cast<unsigned>(first) + lane % 16;
    const unsigned row_start = tile + row * kPanelRowBytes;
#pragma unroll
    for (int k = 0; k < kColumnSteps; ++k) {
      const unsigned chunk = 2 * k % 8 + lane / 16;
      ptx::store_matrices(row_start + k / 4 * panel_bytes(kRows) + ((chunk ^ row % 8) << 4),
                          rows[k]);
    }
  }

  // p and ds of half of a tile of queries, and their products for dv and dk.
  template <int kAt>
  static DFA_DEVICE void half_step(const KernelArgs& args, const KeyWork& work, const Walk& walk,
                                   const Shared& shared, unsigned ds, int group, Sums& sums,
                                   Operand (&p)[kHalves], Operand (&ds_rounded)[kHalves]) {
    constexpr bool kNext = kAt + 1 < kHalves;
    const unsigned rows = group * panel_bytes(kGroupRows);
    const unsigned q = shared.q.tile() + kAt * panel_bytes(kHalf);
    const unsigned d_o = shared.d_o.tile() + kAt * panel_bytes(kHalf);
    Scores dp;
    queue_scores<kConfig.value_dim>(dp, shared.base + kVAt + rows, d_o);
    if constexpr (kNext) {
      queue_scores<kConfig.head_dim>(sums.p[kAt + 1], shared.base + rows, q + panel_bytes(kHalf));
    }
    hide(sums.p[kAt], args, walk.tile * kBlockQ + kAt * kHalf, work.key + group * kGroupRows);
    weigh(sums.p[kAt], args.scale_log2, sums.lse);
    round(p[kAt], sums.p[kAt]);
    queue_gradient<kAt == 0>(sums.dv, p[kAt], d_o);

    make_ds<kNext ? 2 : 1>(dp, sums.p[kAt], shared.delta() + kAt * kHalf * 4, sums.lse);
    round(ds_rounded[kAt], dp);
    store_rows<kBlockK>(ds + kAt * panel_bytes(kBlockK), group * kGroupRows + warp_row(),
                        ds_rounded[kAt]);
    ptx::fence_async();
    queue_gradient<kAt == 0>(sums.dk, ds_rounded[kAt], q);
    if constexpr (kNext) {
      load_pairs(sums.lse, shared.lse() + (kAt + 1) * kHalf * 4);
      ptx::wait_products<2>();
      ptx::pin(sums.p[kAt + 1]);
    }
  }

  // Done in the step before where kLseAhead: a step's own reads of shared memory would stand behind
  // additions to dq.
  static DFA_DEVICE void await_tile(const Shared& shared, Sums& sums) {
    load_pairs(sums.lse, shared.lse());
    shared.d_o.wait_full();
  }

  // One tile of queries. kMore: the next one's scores are queued meanwhile.
  template <bool kMore>
  static DFA_DEVICE void step(const KernelArgs& args, const KeyWork& work, const Walk& walk,
                              Shared& shared, unsigned ds, unsigned& phase, int group, Sums& sums) {
    const unsigned rows = group * panel_bytes(kGroupRows);
    Operand p[kHalves], ds_rounded[kHalves];
    if constexpr (!kLseAhead) await_tile(shared, sums);
    ptx::wait_products<0>();
    ptx::pin(sums.p[0]);
    half_step<0>(args, work, walk, shared, ds, group, sums, p, ds_rounded);
    if constexpr (kHalves == 2) {
      half_step<1>(args, work, walk, shared, ds, group, sums, p, ds_rounded);
    }
    ptx::sync_warps(1, kThreads);  // all of ds is there

    ptx::wait_products<1>();
    ptx::pin(sums.dv);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) ptx::pin(p[h]);
    shared.d_o.release();
    shared.d_o.next();
    typename Dq::Share share;
    queue_dq(share, shared.base, ds, group);
    ptx::wait_products<1>();
    ptx::pin(sums.dk);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) ptx::pin(ds_rounded[h]);
    shared.q.release();
    shared.q.next();
    if constexpr (kMore) {
      shared.q.wait_full();
      queue_scores<kConfig.head_dim>(sums.p[0], shared.base + rows, shared.q.tile());
    }
    ptx::wait_products<kMore ? 1 : 0>();
    ptx::pin(share);

    if constexpr (kMore && kLseAhead) await_tile(shared, sums);
    if constexpr (Dq::kOrdered) ptx::wait(shared.turn(), phase);
    Dq::add(args, {work.batch, walk.head}, walk.tile, work.key, group, share);
    if constexpr (Dq::kOrdered) {
      __syncwarp();
      if (ptx::thread_index() % 32 == 0) ptx::arrive(shared.added());
      phase ^= 1;
    }
  }

  // dk or dv of a warp's keys, through its rows of k or v.
  template <int kFragments>
  static DFA_DEVICE void store_gradient(const TensorMap& map, unsigned tile, int group,
                                        const KeyWork& work, const float (&sum)[kFragments][4],
                                        float factor) {
    unsigned rounded[kFragments / 2][4];
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        rounded[n / 2][n % 2 * 2 + half] =
            ptx::pack<kElement>(sum[n][2 * half] * factor, sum[n][2 * half + 1] * factor);
      }
    }
    const int first = group * kGroupRows + warp_row();
    store_rows<kBlockK>(tile, first, rounded);
    ptx::fence_async();
    __syncwarp();
    if (ptx::thread_index() % 32 != 0) return;
#pragma unroll
    for (int panel = 0; panel < panels(kFragments * 8); ++panel) {
      ptx::store_box(map, tile + panel * panel_bytes(kBlockK) + first * kPanelRowBytes,
                     panel * kPanelColumns, work.key + first, work.head, work.batch);
    }
    ptx::commit_stores();
  }

  static DFA_DEVICE void compute(const Sm90BackwardArgs& a, Shared shared, int group) {
    const KeyWork work = work_of(a.args);
    Sums sums;
    clear(sums.dk);
    clear(sums.dv);
    Walk walk = Walk::of(a.args, work);
    if (walk.any()) {
      const unsigned rows = group * panel_bytes(kGroupRows);
      ptx::wait(shared.k_full(), 0);
      shared.q.wait_full();
      queue_scores<kConfig.head_dim>(sums.p[0], shared.base + rows, shared.q.tile());
      ptx::wait(shared.v_full(), 0);
      if constexpr (kLseAhead) await_tile(shared, sums);
      unsigned ds = shared.base + kDsAt, phase = 0;
#pragma unroll 1
      for (; !walk.is_last(); walk.next()) {
        step<true>(a.args, work, walk, shared, ds, phase, group, sums);
        ds = 2 * (shared.base + kDsAt) + kDsBytes - ds;  // the other buffer
      }
      step<false>(a.args, work, walk, shared, ds, phase, group, sums);
    }
    ptx::sync_warps(1, kThreads);  // all have read k
    store_gradient(a.dv, shared.base + kVAt, group, work, sums.dv, 1);
    store_gradient(a.dk, shared.base, group, work, sums.dk, a.args.scale);
    ptx::wait_stores_read();
  }
};

template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_backward(const __grid_constant__ Sm90BackwardArgs a) {
  using Kernel = Sm90Backward<kConfig>;
  extern __shared__ __align__(1024) char smem[];
  const auto shared = Kernel::shared_of(ptx::shared_address(smem));
  if (threadIdx.x == 0) Kernel::init(shared);
  __syncthreads();
  const int group = __shfl_sync(ptx::kWholeWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    ptx::give_registers<Kernel::kGiven>();
    if (threadIdx.x < 32) Kernel::copy(a, shared);
    if (Kernel::Dq::kOrdered && threadIdx.x == 32) Kernel::keep_turns(a.args, shared);
  } else {
    ptx::take_registers<Kernel::kTaken>();
    Kernel::compute(a, shared, group - 1);
  }
}

}  // namespace dfa
