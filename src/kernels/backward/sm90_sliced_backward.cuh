#pragma once

#include "kernels/backward/sm90_args.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/schedule/key_work_tile.cuh"
#include "kernels/schedule/query_work_tile.cuh"
#include "kernels/schedule/streamed_ring.cuh"
#include "kernels/softmax/online_softmax.cuh"
#include "kernels/tile/left_operand.cuh"
#include "kernels/tile/panel.h"
#include "kernels/tile/panel_rows.cuh"
#include "spec/backward_config.h"

// Hopper's backward of heads above 256 columns, in fp16 and bf16: a launch for each of dv, dk, dq.
//
// A thread block owns 64 rows and walks tiles of 64 of the other side:
//   dq   owns queries, with q and do in shared memory, and walks k and v:  dq += ds k
//   dv   owns keys, with k, and walks q and do of the group's query heads: dv += p^T do
//   dk   owns keys, with k and v, and walks the same:                      dk += ds^T q
// As in sm90_sliced_forward two warpgroups have half of the sum's columns each. Of two tiles walked
// each makes the scores of one, p and ds, and multiplies those of both: its own from registers, the
// other's through shared memory. What is walked comes in panels of 64 columns, through a ring of
// each warpgroup's own: whole tiles for scores and dp, then its half of both tiles. Life of a step:
//   tensor cores   own sum, the other's, of step i - 1 | S | dP of step i
//   threads        p while dP is made, ds behind it
// An odd number of tiles is filled up with one whose p is 0. Limits: d and dv from 257 to 512;
// plain logits, windows.
namespace dfa {

enum class SlicedGradient : int { dv, dk, dq };

template <BackwardConfig kConfig, SlicedGradient kOf>
struct Sm90SlicedBackward {
  static constexpr DType kElement = kConfig.element;
  static constexpr bool kVarlen = kConfig.varlen;
  using Seqlen = SeqlenInfo<kVarlen>;
  static constexpr bool kOwnsQueries = kOf == SlicedGradient::dq;
  static constexpr bool kOfValues = kOf == SlicedGradient::dv;
  static constexpr int kDim = kConfig.head_dim, kValueDim = kConfig.value_dim;
  static constexpr int kColumns = (kOfValues ? kValueDim : kDim) / 2;  // of a warpgroup's sum
  static constexpr int kScorePanels = panels(kDim), kDpPanels = kOfValues ? 0 : panels(kValueDim);
  static constexpr int kSumPanels = panels(kColumns);
  static constexpr int kTile = kGroupRows;  // rows, of both sides
  static constexpr int kFragments = kTile / 8, kSteps = kTile / 16;
  static constexpr int kPanelBytes = panel_bytes(kTile);

  // Shared memory: the owned tiles, rings, what warpgroups leave for each other, lse and delta of
  // queries that are walked, barriers.
  static constexpr int kStages = kConfig.sliced_stages(kOfValues);
  static constexpr int kSecondAt = kScorePanels * kPanelBytes;
  static constexpr int kRingsAt = kSecondAt + kDpPanels * kPanelBytes;
  static constexpr int kSharedAt = kRingsAt + 2 * kStages * kPanelBytes;
  static constexpr int kRowsAt = kSharedAt + 2 * kPanelBytes;
  static constexpr int kRowBytes = 4 * kTile;  // of lse, or delta
  static constexpr int kBarriersAt = kRowsAt + 2 * 2 * 2 * kRowBytes;
  static_assert(kBarriersAt + 16 * (1 + 2 * kStages) == kConfig.sm90_sliced_smem_bytes(kOfValues));

  using Ring = StreamedRing<kStages>;
  static DFA_DEVICE Ring ring_of(unsigned smem, int group) {
    return {{smem + kRingsAt + group * kStages * kPanelBytes,
             smem + kBarriersAt + 16 * (1 + group * kStages), kPanelBytes}};
  }
  static DFA_DEVICE unsigned owned_full(unsigned smem) { return smem + kBarriersAt; }
  static DFA_DEVICE unsigned shared_by(unsigned smem, int group) {
    return smem + kSharedAt + group * kPanelBytes;
  }
  // Of the walked tile of a step: lse, then delta.
  static DFA_DEVICE unsigned rows_of(unsigned smem, int group, int step) {
    return smem + kRowsAt + (2 * group + step % 2) * 2 * kRowBytes;
  }

  // The 64 rows that a thread block owns, and the tiles that it walks: of keys, or of queries of
  // one query head after the other.
  struct Work {
    Seqlen seq;
    int head, first;  // a query head, or a key head
    TileRange tiles;
    int walked_head, total;

    DFA_DEVICE int count() const { return tiles.end - tiles.begin; }
    DFA_DEVICE int steps() const { return (total + 1) / 2; }
    // The n-th; behind the end the last one stands in.
    struct Tile {
      int head, first;
      bool there;
    };
    DFA_DEVICE Tile nth(int n) const {
      const bool there = n < total;
      const int at = there ? n : total - 1, round = at / count();
      return {walked_head + round, (tiles.begin + at - round * count()) * kTile, there};
    }
    DFA_DEVICE Tile of(int step, int group) const { return nth(2 * step + group); }
  };
  // Of packed sequences there are as many thread blocks as there could be work tiles.
  static DFA_DEVICE bool has_work(const KernelArgs& args) {
    if constexpr (!kVarlen) return true;
    return kOwnsQueries ? has_query_work_tile<kTile>(args, ptx::block_index())
                        : has_packed_key_work_tile(args, ptx::block_index());
  }
  static DFA_DEVICE Work work_of(const KernelArgs& args) {
    if constexpr (kOwnsQueries) {
      const auto own = query_work_tile<kTile, kVarlen>(args, ptx::block_index());
      const TileRange tiles = key_tiles(TileMask::of(args, own.seq), own.query, kTile, kTile);
      return {own.seq, own.head, own.query, tiles, own.kv_head, tiles.end - tiles.begin};
    } else {
      const auto own = key_work(args);
      const TileRange tiles = query_tiles(TileMask::of(args, own.seq), own.key, kTile, kTile);
      const int group = args.hq / args.hk;
      return {own.seq, own.head,         own.key,
              tiles,   own.head * group, group * (tiles.end - tiles.begin)};
    }
  }
  static DFA_DEVICE KeyWorkTile<kVarlen> key_work(const KernelArgs& args) {
    if constexpr (kVarlen) {
      return packed_key_work_tile<kTile>(args, ptx::block_index());
    } else {
      return key_work_tile<kTile, false>(args, ptx::block_index());
    }
  }

  // A box of 64 rows of q or do (of_queries), or of k or v.
  static DFA_DEVICE void load_panel(const KernelArgs& args, const Seqlen& seq, bool of_queries,
                                    const TensorMap& map, unsigned to, unsigned barrier, int column,
                                    int row, int head) {
    ptx::load_box<kVarlen>(to, map, barrier, column,
                           of_queries ? seq.q_box_row(args, row) : seq.k_box_row(args, row), head,
                           of_queries ? seq.q_box_batch() : seq.k_box_batch());
  }

  // A thread that copies for one warpgroup, and the owned tiles.
  static DFA_DEVICE void load_owned(const Sm90BackwardArgs& a, const Work& work, unsigned smem) {
    ptx::arrive_expecting(owned_full(smem), (kScorePanels + kDpPanels) * kPanelBytes);
    load_tile(a, kOwnsQueries ? a.q : a.k, work, kScorePanels, smem, smem);
    load_tile(a, kOwnsQueries ? a.d_o : a.v, work, kDpPanels, smem + kSecondAt, smem);
  }
  static DFA_DEVICE void load_tile(const Sm90BackwardArgs& a, const TensorMap& map,
                                   const Work& work, int count, unsigned to, unsigned smem) {
    for (int panel = 0; panel < count; ++panel) {
      load_panel(a.args, work.seq, kOwnsQueries, map, to + panel * kPanelBytes, owned_full(smem),
                 panel * kPanelColumns, work.first, work.head);
    }
  }

  static DFA_DEVICE void copy(const Sm90BackwardArgs& a, const Work& work, unsigned smem,
                              int group) {
    const TensorMap& of_scores = kOwnsQueries ? a.k : a.q;
    const TensorMap& of_dp = kOwnsQueries ? a.v : a.d_o;
    const TensorMap& of_sum = kOfValues ? a.d_o : of_scores;
    Ring ring = ring_of(smem, group);
    const auto panel = [&](const TensorMap& map, const typename Work::Tile& tile, int column) {
      load_panel(a.args, work.seq, !kOwnsQueries, map, ring.tile(), ring.full(), column, tile.first,
                 tile.head);
      ring.next();
    };
    const auto panels_of = [&](const TensorMap& map, const typename Work::Tile& tile, int first,
                               int count) {
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        ring.wait_empty();
        ptx::arrive_expecting(ring.full(), kPanelBytes);
        panel(map, tile, (first + i) * kPanelColumns);
      }
    };
    const auto halves = [&](int step) {
      panels_of(of_sum, work.of(step, group), group * kSumPanels, kSumPanels);
      panels_of(of_sum, work.of(step, group ^ 1), group * kSumPanels, kSumPanels);
    };
    const int steps = work.steps();
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if (step > 0) halves(step - 1);
      const auto tile = work.of(step, group);
      ring.wait_empty();
      ptx::arrive_expecting(ring.full(), kPanelBytes + (kOwnsQueries ? 0 : 2 * kRowBytes));
      if constexpr (!kOwnsQueries) load_rows_of(a.args, work, tile, ring.full(), smem, group, step);
      panel(of_scores, tile, 0);
      panels_of(of_scores, tile, 1, kScorePanels - 1);
      panels_of(of_dp, tile, 0, kDpPanels);
    }
    if (steps > 0) halves(steps - 1);
  }
  // Those of the step before the last have been read, as all of its panels were given back.
  static DFA_DEVICE void load_rows_of(const KernelArgs& args, const Work& work,
                                      const typename Work::Tile& tile, unsigned barrier,
                                      unsigned smem, int group, int step) {
    const long long at = work.seq.padded_offset(args, tile.head) + tile.first;
    const unsigned to = rows_of(smem, group, step);
    ptx::load_bytes(to, args.lse_log2 + at, kRowBytes, barrier);
    ptx::load_bytes(to + kRowBytes, args.delta + at, kRowBytes, barrier);
  }

  // A warpgroup.

  using Scores = float[kFragments][4];
  using Operand = unsigned[kSteps][4];
  using Sums = float[kColumns / 8][4];

  static DFA_DEVICE int lane() { return static_cast<int>(ptx::kept_thread_index() % 32); }
  static DFA_DEVICE int warp_row() {
    return static_cast<int>(ptx::kept_thread_index() / 32 % 4) * 16;
  }

  // Named barriers: what both left is there; a warpgroup's has been read by the other.
  static constexpr unsigned kShared = 1, kRead = 2, kBoth = 2 * kGroupThreads;

  // Scores, or dp, of a panel of 64 columns.
  template <int kKeep>
  static DFA_DEVICE void multiply_panel(Scores& scores, unsigned owned, unsigned walked) {
    const Descriptor left = k_in_columns(owned), right = k_in_columns(walked);
    ptx::fence_products();
    ptx::multiply_shared<kElement, kKeep>(scores, left.bits(), right.bits());
#pragma unroll
    for (int step = 1; step < kPanelColumns / 16; ++step) {
      ptx::multiply_shared<kElement, 1>(scores, left.moved(column_step<kTile>(step)).bits(),
                                        right.moved(column_step<kTile>(step)).bits());
    }
    ptx::commit_products();
  }

  // `beside(i)` runs beside the products of panel i.
  template <bool kFirst, int kCount, typename Beside>
  static DFA_DEVICE void multiply_tiles(Scores& scores, unsigned owned, Ring& ring,
                                        const Beside& beside) {
    ptx::forget(owned);
    ptx::pin(scores);
    multiply_panel<0>(scores, owned, ring.take());
    if constexpr (!kFirst) ring.give_back_done();
    beside(0);
#pragma unroll
    for (int panel = 1; panel < kCount; ++panel) {
      multiply_panel<1>(scores, owned + panel * kPanelBytes, ring.take());
      ring.give_back_done();
      beside(panel);
    }
  }

  // Its half of a tile, times a warpgroup's own operand or the other's. kFirst: nothing is under
  // way.
  template <bool kFirst, typename Left>
  static DFA_DEVICE void add(Sums& sums, const Left& left, Ring& ring) {
#pragma unroll
    for (int panel = 0; panel < kSumPanels; ++panel) {
      multiply_left<kTile>(reinterpret_cast<Scores&>(sums[panel * kFragments]), left, ring.take());
      if (!kFirst || panel > 0) ring.give_back_done();
    }
  }
  using OwnOperand = LeftInRegisters<kElement, kSteps>;
  using OthersOperand = LeftInPanel<kElement>;

  static DFA_DEVICE void round(Operand& rounded, const Scores& scores) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* two = scores[2 * k + i / 2] + i % 2 * 2;
        rounded[k][i] = ptx::pack<kElement>(two[0], two[1]);
      }
    }
  }

  // lse or delta of a fragment: of a thread's two rows, or, where queries are columns, of two.
  struct Values {
    float of_row[2];
    unsigned of_columns;  // in shared memory

    DFA_DEVICE float2 pair(int n) const {
      if constexpr (kOwnsQueries) return {};
      return ptx::load_shared_2(of_columns + 32 * n);
    }
    DFA_DEVICE float at(const float2& pair, int i) const {
      if constexpr (kOwnsQueries) return of_row[i / 2];
      return i % 2 ? pair.y : pair.x;
    }
  };

  template <int kFrom, int kTo>
  static DFA_DEVICE void exp2(Scores& scores, float scale_log2, const Values& lse) {
#pragma unroll
    for (int n = kFrom; n < kTo; ++n) {
      const float2 pair = lse.pair(n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = ptx::exp2(fmaf(scores[n][i], scale_log2, -lse.at(pair, i)));
      }
    }
  }
  static DFA_DEVICE void differentiate(Scores& dp, const Scores& p, const Values& delta) {
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      const float2 pair = delta.pair(n);
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[n][i] = p[n][i] * (dp[n][i] - delta.at(pair, i));
    }
  }

  static DFA_DEVICE void hide(const KernelArgs& args, Scores& scores, const Work& work,
                              const typename Work::Tile& tile) {
    const TileMask mask = TileMask::of(args, work.seq);
    const float hidden = PlainLogits::hidden(args);
    if (!tile.there) {
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[n][i] = hidden;
      }
      return;
    }
    const int query = kOwnsQueries ? work.first : tile.first;
    const int key = kOwnsQueries ? tile.first : work.first;
    if (!mask.needs(query, kTile, key, kTile)) return;
    auto& sum = reinterpret_cast<Sum<1, kFragments>&>(scores);
    if constexpr (kOwnsQueries) {
      hide_masked(sum, mask, query + warp_row(), key, hidden);
    } else {
      hide_masked_transposed(sum, mask, key + warp_row(), query, hidden);
    }
  }

  // The two sides of sums: what a warpgroup's operand is of, in registers and for the other.
  static DFA_DEVICE void share(const Operand& own, unsigned smem, int group) {
    ptx::sync_warps(kRead + group, kBoth);
    store_rows<kTile>(shared_by(smem, group), warp_row(), own, static_cast<unsigned>(lane()));
    ptx::fence_async();
  }

  // p and, but for dv, ds of a step.
  template <bool kFirst>
  static DFA_DEVICE void make_operand(const KernelArgs& args, Operand& own, const Work& work,
                                      int step, Ring& ring, unsigned smem, int group,
                                      const Values& lse, const Values& delta) {
    Scores p;
    const auto pass_read = [&](int panel) {
      if (!kFirst && panel == 0) ptx::arrive_warps(kRead + (group ^ 1), kBoth);
    };
    multiply_tiles<kFirst, kScorePanels>(p, smem, ring, pass_read);
    if constexpr (kOfValues) {
      ptx::wait_products<0>();
      ptx::pin(p);
      ring.template give_back<1>();
      hide(args, p, work, work.of(step, group));
      exp2<0, kFragments>(p, args.scale_log2, lse);
      round(own, p);
    } else {
      Scores dp;
      multiply_tiles<false, kDpPanels>(dp, smem + kSecondAt, ring, [&](int panel) {
        if (panel == 0) {
          ptx::pin(p);
          hide(args, p, work, work.of(step, group));
        }
        if (panel == 1) exp2<0, kFragments / 4>(p, args.scale_log2, lse);
        if (panel == 2) exp2<kFragments / 4, kFragments / 2>(p, args.scale_log2, lse);
        if (panel == 3) exp2<kFragments / 2, kFragments * 3 / 4>(p, args.scale_log2, lse);
        if (panel == 4) exp2<kFragments * 3 / 4, kFragments>(p, args.scale_log2, lse);
      });
      ptx::wait_products<0>();
      ptx::pin(dp);
      ring.template give_back<1>();
      differentiate(dp, p, delta);
      round(own, dp);
    }
    share(own, smem, group);
  }

  static DFA_DEVICE Values values_at(const float* rows, const KernelArgs& args, const Work& work) {
    Values values{};
    if constexpr (kOwnsQueries) {
      const float* at = rows + work.seq.padded_offset(args, work.head) + work.first + warp_row();
#pragma unroll
      for (int half = 0; half < 2; ++half) values.of_row[half] = at[half * 8 + lane() / 4];
    }
    return values;
  }

  static DFA_DEVICE void compute(const Sm90BackwardArgs& a, const Work& work, unsigned smem,
                                 int group) {
    const KernelArgs& args = a.args;
    Values lse = values_at(args.lse_log2, args, work);
    Values delta = values_at(args.delta, args, work);
    const auto place = [&](int step) {
      if constexpr (kOwnsQueries) return;
      lse.of_columns = rows_of(smem, group, step) + static_cast<unsigned>(lane()) % 4 * 8;
      delta.of_columns = lse.of_columns + kRowBytes;
    };
    Ring ring = ring_of(smem, group);
    Sums sums;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] = 0;
    }
    const int steps = work.steps();
    if (steps > 0) {
      ptx::arrive_warps(kRead + (group ^ 1), kBoth);
      ptx::wait(owned_full(smem), 0);
      Operand own;
      place(0);
      make_operand<true>(args, own, work, 0, ring, smem, group, lse, delta);
#pragma unroll 1
      for (int step = 1; step < steps; ++step) {
        ptx::pin(sums);
        ptx::pin(own);
        add<true>(sums, OwnOperand{own}, ring);
        ptx::sync_warps(kShared, kBoth);
        add<false>(sums, OthersOperand::at(shared_by(smem, group ^ 1)), ring);
        place(step);
        make_operand<false>(args, own, work, step, ring, smem, group, lse, delta);
        ptx::pin(sums);
      }
      ptx::pin(sums);
      ptx::pin(own);
      add<true>(sums, OwnOperand{own}, ring);
      ptx::sync_warps(kShared, kBoth);
      add<false>(sums, OthersOperand::at(shared_by(smem, group ^ 1)), ring);
      ptx::wait_products<0>();
      ptx::pin(sums);
      ptx::pin(own);
    }
    store(args, work, sums, group * kColumns);
  }

  // Lanes exchange halves, so that each writes 8 bytes and a row's 32 come together.
  static DFA_DEVICE void store(const KernelArgs& args, const Work& work, const Sums& sums,
                               int first_column) {
    const KernelStrides& strides = kOwnsQueries ? args.q_strides
                                   : kOfValues  ? args.v_strides
                                                : args.k_strides;
    void* const gradient = kOwnsQueries ? args.dq : kOfValues ? args.dv : args.dk;
    const float factor = kOfValues ? 1 : args.scale;
    const int rows = kOwnsQueries ? work.seq.sq(args) : work.seq.sk(args),
              columns = kOfValues ? args.d_v : args.d;
    const int odd = lane() % 2;
    char* const head = static_cast<char*>(gradient) +
                       (kOwnsQueries ? q_head_offset<kElement>(args, strides, work.seq, work.head)
                                     : k_head_offset<kElement>(args, strides, work.seq, work.head));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = work.first + warp_row() + half * 8 + lane() / 4;
      char* const to = head + bytes_of(kElement) * (row * strides.row);
#pragma unroll
      for (int n = 0; n < kColumns / 8; n += 2) {
        unsigned pair[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float* two = sums[n + i] + half * 2;
          pair[i] = ptx::pack<kElement>(two[0] * factor, two[1] * factor);
        }
        const unsigned got = __shfl_xor_sync(ptx::kWholeWarp, odd ? pair[0] : pair[1], 1);
        const int column = first_column + (n + odd) * 8 + lane() % 4 / 2 * 4;
        if (row >= rows || column >= columns) continue;
        *reinterpret_cast<uint2*>(to + bytes_of(kElement) * column) =
            odd ? make_uint2(got, pair[1]) : make_uint2(pair[0], got);
      }
    }
  }
};

template <BackwardConfig kConfig, SlicedGradient kOf>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_sliced_backward(const __grid_constant__ Sm90BackwardArgs a) {
  using Kernel = Sm90SlicedBackward<kConfig, kOf>;
  extern __shared__ __align__(1024) char smem[];
  const unsigned shared = ptx::shared_address(smem);
  if (threadIdx.x == 0) {
    ptx::init_barrier(Kernel::owned_full(shared), 1);
    Kernel::ring_of(shared, 0).init();
    Kernel::ring_of(shared, 1).init();
    ptx::fence_barrier_init();
  }
  __syncthreads();
  ptx::griddepcontrol_wait();
  if (!Kernel::has_work(a.args)) return;
  const auto work = Kernel::work_of(a.args);
  const int group = __shfl_sync(ptx::kWholeWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    ptx::setmaxnreg_dec<24>();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (work.total > 0 && warp < 2 && ptx::elect()) {
      if (warp == 0) Kernel::load_owned(a, work, shared);
      Kernel::copy(a, work, shared, warp);
    }
  } else {
    ptx::setmaxnreg_inc<240>();
    Kernel::compute(a, work, shared, group - 1);
  }
}

}  // namespace dfa
