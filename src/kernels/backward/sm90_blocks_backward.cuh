#pragma once

#include "kernels/backward/sm90_backward.cuh"
#include "kernels/backward/sm90_blocks_args.h"
#include "kernels/schedule/block_lists.cuh"

// Hopper's backward over lists of blocks: sm90_backward whose tiles of queries are those of lists.
//
// A work tile lies in one block of keys, which has a list for each query head of its group. The
// copying warp walks them one after the other, passes over what the mask hides and entries that are
// no block, and beside each tile of q it tells which one it is, of which head, whether bits hide
// some of it, and whether another follows. Limits beside those of sm90_backward: dq is added as it
// comes (atomic), as blocks of keys that a list leaves out would be waited for otherwise.
namespace dfa {

template <BackwardConfig kConfig>
struct Sm90BlocksBackward : Sm90Backward<kConfig> {
  using Base = Sm90Backward<kConfig>;
  using Base::await_tile, Base::kBlockK, Base::kBlockQ, Base::kDsBytes, Base::kLseAhead;
  using typename Base::HalfStep, typename Base::Keys, typename Base::Sums, typename Base::WorkTile;
  using Scores = typename Keys::Scores;
  using Args = Sm90BlocksBackwardArgs;
  using Steps = ListedQuerySteps<kConfig.block_q>;
  static_assert(kConfig.blocks && kConfig.dq == DqAccumulation::atomic && !Keys::kPaired &&
                !Keys::kWide && !kConfig.varlen && Keys::kQueueAt % 16 == 0);

  // A tile that a list has, as the copying warp tells the others of it beside q.
  struct Step {
    int head, tile, bitmap, row;  // the bitmap's row of its first query, below 0: the last step

    DFA_DEVICE bool more() const { return row >= 0; }
  };

  // What all know, and the step under way.
  struct Shared : Keys::Shared {
    const BlockArgs& blocks;
    Step step;

    DFA_DEVICE unsigned place() const {
      return this->base + Keys::kQueueAt + this->q.stage * kListedStepBytes;
    }
    DFA_DEVICE void tell(const ListedPlace& listed, bool more) const {
      const int row = listed.part * kBlockQ;
      ptx::store_shared(place(), static_cast<unsigned>(listed.head));
      ptx::store_shared(place() + 4, static_cast<unsigned>(listed.tile));
      ptx::store_shared(place() + 8, static_cast<unsigned>(listed.bitmap));
      ptx::store_shared(place() + 12, static_cast<unsigned>(more ? row : -1 - row));
    }
    DFA_DEVICE void be_told() {
      const uint4 words = ptx::load_words_4(place());
      step = {static_cast<int>(words.x), static_cast<int>(words.y), static_cast<int>(words.z),
              static_cast<int>(words.w)};
    }

    // Scores of the step's queries from its `query`-th on, and of keys from `key` on.
    DFA_DEVICE void hide_unlisted(Scores& scores, const KernelArgs& args, int query,
                                  int key) const {
      if (step.bitmap == kFullBlock) return;
      const int row = step.row < 0 ? -1 - step.row : step.row;
      hide_unlisted_transposed(reinterpret_cast<Sum<1, Keys::kQueries>&>(scores),
                               blocks.bits_of(step.bitmap), blocks.row_words, row + query,
                               key % blocks.block_k + Keys::warp_row(), Keys::hidden(args));
    }
  };

  static DFA_DEVICE Steps steps_of(const Args& a, const WorkTile& work) {
    const TileRange seen = query_tiles(TileMask::of(a.args, work.seq), work.key, kBlockK, kBlockQ);
    const int group = a.args.hq / a.args.hk;
    return Steps(a.blocks, work.seq.batch, work.head * group, group, work.key, seen);
  }
  // The last step of those before `step` that is there.
  static DFA_DEVICE ListedPlace step_before(const Steps& steps, int& step) {
#pragma unroll 1
    while (--step >= 0) {
      const ListedPlace listed = steps.at(step);
      if (listed.tile >= 0) return listed;
    }
    return {0, -1, kFullBlock, 0};
  }
  static DFA_DEVICE bool any_step(const Args& a, const WorkTile& work) {
    const Steps steps = steps_of(a, work);
    int step = steps.steps();
    return step_before(steps, step).tile >= 0;
  }

  // By the copying warp. What stands beside q is there when q is.
  template <int kColumns, bool kTells, typename Ring>
  static DFA_DEVICE void load_queries(const Shared& shared, const Ring& ring, const TensorMap& map,
                                      unsigned to_rows, const float* rows, const KernelArgs& args,
                                      const WorkTile& work, const ListedPlace& listed, bool more) {
    ring.wait_empty();
    if (!Keys::starts_copies()) return;
    if constexpr (kTells) shared.tell(listed, more);
    ptx::arrive_expecting(ring.full(), tile_bytes(kBlockQ, kColumns) + Keys::kRowBytes);
    Keys::template load_tile<kBlockQ, kColumns>(ring.tile(), map, ring.full(),
                                                listed.tile * kBlockQ, listed.head, work.seq.batch);
    ptx::load_bytes(to_rows,
                    rows + work.seq.padded_offset(args, listed.head) + listed.tile * kBlockQ,
                    Keys::kRowBytes, ring.full());
  }

  static DFA_DEVICE void copy(const Args& a, Shared shared) {
    const WorkTile work = Keys::work_tile_of(a.args, shared);
    const Steps steps = steps_of(a, work);
    int step = steps.steps();
    ListedPlace listed = step_before(steps, step);
    if (listed.tile >= 0) Keys::load_keys(a, shared, work);
#pragma unroll 1
    while (listed.tile >= 0) {
      const ListedPlace next = step_before(steps, step);
      const bool more = next.tile >= 0;
      load_queries<kConfig.head_dim, true>(shared, shared.q, a.q, shared.lse(), a.args.lse_log2,
                                           a.args, work, listed, more);
      load_queries<kConfig.value_dim, false>(shared, shared.d_o, a.d_o, shared.delta(),
                                             a.args.delta, a.args, work, listed, more);
      shared.q.next();
      shared.d_o.next();
      listed = next;
    }
    shared.d_o.wait_all_empty();
    shared.q.wait_all_empty();
  }

  static DFA_DEVICE void compute(const Args& a, Shared shared, int group) {
    const WorkTile work = Keys::work_tile_of(a.args, shared);
    Sums sums;
    Keys::clear(sums.dk);
    Keys::clear(sums.dv);
    HalfStep::keep_seeing(sums, a.args, work.seq, work.key + group * kGroupRows);
    if (any_step(a, work)) {
      ptx::wait(shared.k_full(), 0);
      HalfStep::hold_k(sums, shared.base, group);
      shared.q.wait_full();
      HalfStep::queue_s(sums.p[0], sums, shared.base, group, shared.q.tile());
      shared.be_told();
      ptx::wait(shared.v_full(), 0);
      HalfStep::hold_v(sums, shared.base, group);
      if constexpr (kLseAhead) await_tile(shared, sums);
      unsigned ds = shared.base + Keys::kDsAt, phase = 0;
#pragma unroll 1
      while (shared.step.more()) {
        Base::template step<true>(a.args, work, shared.step, shared, ds, phase, group, sums);
        shared.be_told();
        ds = 2 * (shared.base + Keys::kDsAt) + kDsBytes - ds;  // the other buffer
      }
      Base::template step<false>(a.args, work, shared.step, shared, ds, phase, group, sums);
    }
    ptx::sync_warps(1, Keys::kThreads);  // all have read k
    Keys::store_gradients(a, shared, group, work, sums.dk, sums.dv);
  }
};

template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_blocks_backward(const __grid_constant__ Sm90BlocksBackwardArgs a) {
  using Kernel = Sm90BlocksBackward<kConfig>;
  using Keys = typename Kernel::Keys;
  extern __shared__ __align__(1024) char smem[];
  const typename Kernel::Shared shared{Keys::shared_of(ptx::shared_address(smem)), a.blocks, {}};
  if (threadIdx.x == 0) Keys::init(shared);
  __syncthreads();
  ptx::griddepcontrol_wait();
  const int group = __shfl_sync(ptx::kWholeWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    ptx::setmaxnreg_dec<Keys::kGiven>();
    if (threadIdx.x < 32) Kernel::copy(a, shared);
  } else {
    ptx::setmaxnreg_inc<Keys::kTaken>();
    Kernel::compute(a, shared, group - 1);
  }
}

}  // namespace dfa
