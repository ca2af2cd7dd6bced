#pragma once

#include "kernels/backward/sm90_keys.cuh"

// FlashAttention backward for sm_90a where d and dv are up to 64, in fp16 and bf16, by three
// warpgroups with 64 keys each.
//
// A thread block owns 192 keys of one key head and walks tiles of 192 queries; what is where, and
// who copies, is sm90_backward's. Two warpgroups leave the tensor cores idle for a third of a step,
// as each waits for its own products and exponentials; three of them, one after the other in what
// they do, fill each other's gaps. So a warpgroup, which has 160 registers here, takes a part of 64
// queries after the other and has hardly a product beside another:
//   p^T  = exp2(scale_log2 k q^T - lse_log2)      dv += p^T do
//   ds^T = p^T * (v do^T - delta)                 dk += ds^T q, beside the next k q^T
// and when all have told ds of a tile, each has dq of one part, of all keys:
//   dq^T += k^T ds^T
// There is one place for ds; a barrier says when all have read it.
// Limits: dq as sums that come as they come; strides in multiples of 16 bytes.
namespace dfa {

template <BackwardConfig kConfig>
struct Sm90ThreeBackward {
  using Keys = Sm90Keys<kConfig>;
  using Dq = typename Keys::Dq;
  using Operand = typename Keys::Operand;
  using Scores = typename Keys::Scores;
  using Shared = typename Keys::Shared;
  using Walk = typename Keys::Walk;
  static constexpr int kPart = Keys::kHalf;
  static constexpr int kParts = kConfig.block_q / kPart;
  static_assert(kParts == 3 && kConfig.warps == 4 * kParts);

  struct Sums {
    float dk[Keys::kDims][4], dv[Keys::kValues][4];
    Scores p;  // of the part under way, first its scores
  };

  // A warpgroup's place in its walk.
  struct Step {
    const KernelArgs& args;
    const int group;
    Shared shared;
    unsigned phase = 0;  // of ds that has been read

    DFA_DEVICE unsigned rows() const { return group * panel_bytes(kGroupRows); }
    DFA_DEVICE unsigned ds(int part) const {
      return shared.base + Keys::kDsAt + part * panel_bytes(kConfig.block_k);
    }
    static DFA_DEVICE unsigned pairs(unsigned rows, int part) {
      return rows + part * kPart * 4 + Keys::thread() % 4 * 8;
    }
    DFA_DEVICE unsigned lse(int part) const { return pairs(shared.lse(), part); }
    DFA_DEVICE unsigned delta(int part) const { return pairs(shared.delta(), part); }
  };

  static DFA_DEVICE void queue_s(const Step& at, Scores& s, int part) {
    Keys::template queue_scores<kConfig.head_dim>(s, at.shared.base + at.rows(),
                                                  at.shared.q.tile() + part * panel_bytes(kPart));
  }
  static DFA_DEVICE void make_dp(const Step& at, Scores& dp, unsigned d_o) {
    Keys::template queue_scores<kConfig.value_dim>(dp, at.shared.base + Keys::kVAt + at.rows(),
                                                   d_o);
    ptx::wait_products<0>();
    ptx::pin(dp);
  }

  // Which queries see all keys is worked out anew: there is no register for it.
  static DFA_DEVICE void hide(const Step& at, Scores& scores, int query, int key) {
    const TileMask mask = TileMask::of(at.args);
    const TileRange seeing = seeing_all(mask, key, kGroupRows);
    if (query >= seeing.begin && query + kPart <= seeing.end) return;
    Keys::hide_some(scores, at.args, mask, query, key);
  }

  // Part kAt of a tile, whose scores are under way.
  template <int kAt>
  static DFA_DEVICE void part(Step& at, int query, int key, Sums& sums, Operand& ds) {
    const unsigned q = at.shared.q.tile() + kAt * panel_bytes(kPart);
    const unsigned d_o = at.shared.d_o.tile() + kAt * panel_bytes(kPart);
    ptx::wait_products<0>();  // for the scores, and dk of the part before
    ptx::pin(sums.p);
    if constexpr (kAt > 0) {
      ptx::pin(sums.dk);
      ptx::pin(ds);
    }
    hide(at, sums.p, query + kAt * kPart, key);
    const unsigned lse = at.lse(kAt), delta = at.delta(kAt);
#pragma unroll
    for (int n = 0; n < Keys::kQueries; ++n) {
      const float2 of = ptx::load_shared_2(lse + n * 32);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums.p[n][i] = ptx::exp2(fmaf(sums.p[n][i], at.args.scale_log2, -(i % 2 ? of.y : of.x)));
      }
    }
    Operand p;
    Keys::round(p, sums.p);
    Keys::template queue_gradient<true>(sums.dv, p, d_o);
    ptx::wait_products<0>();
    ptx::pin(sums.dv);
    ptx::pin(p);

    Scores dp;
    make_dp(at, dp, d_o);
    Keys::differentiate(dp, sums.p, [&](int n) { return ptx::load_shared_2(delta + n * 32); });
    Keys::round(ds, dp);
    if constexpr (kAt == 0) ptx::wait(at.shared.ds_read(), at.phase ^ 1);
    if constexpr (kAt + 1 < kParts) queue_s(at, sums.p, kAt + 1);
    store_rows<kConfig.block_k>(at.ds(kAt), at.group * kGroupRows + Keys::warp_row(), ds,
                                Keys::lane());
    Keys::template queue_gradient<true>(sums.dk, ds, q);
    ptx::fence_async();  // behind the products' start: it waits for the stores
  }

  // One tile of queries. kMore: the next one's scores are queued meanwhile.
  template <bool kMore>
  static DFA_DEVICE void step(Step& at, const KeyWork& work, const Walk& walk, Sums& sums) {
    Operand ds;
    const int query = walk.tile * kConfig.block_q, key = work.key + at.group * kGroupRows;
    at.shared.d_o.wait_full();
    part<0>(at, query, key, sums, ds);
    part<1>(at, query, key, sums, ds);
    part<2>(at, query, key, sums, ds);
    ptx::sync_warps(1, Keys::kThreads);  // all of ds is there
    at.shared.d_o.release();
    at.shared.d_o.next();

    typename Dq::Share share;
    Keys::queue_dq(share, at.shared.base, at.ds(0), at.group);
    ptx::wait_products<1>();
    ptx::pin(sums.dk);
    ptx::pin(ds);
    at.shared.q.release();
    at.shared.q.next();
    if constexpr (kMore) {
      at.shared.q.wait_full();
      queue_s(at, sums.p, 0);
    }
    ptx::wait_products<kMore ? 1 : 0>();
    ptx::pin(share);
    __syncwarp();
    if (ptx::thread_index() % 32 == 0) ptx::arrive(at.shared.ds_read());
    at.phase ^= 1;
    Dq::add(at.args, {work.batch, walk.head}, walk.tile, work.key, at.group, share);
  }

  static DFA_DEVICE void compute(const Sm90BackwardArgs& a, const Shared& shared, int group) {
    const KeyWork work = Keys::work_of(a.args);
    Sums sums;
    Keys::clear(sums.dk);
    Keys::clear(sums.dv);
    Walk walk = Walk::of(a.args, work);
    if (walk.any()) {
      Step at{a.args, group, shared};
      ptx::wait(shared.k_full(), 0);
      at.shared.q.wait_full();
      queue_s(at, sums.p, 0);
      ptx::wait(shared.v_full(), 0);
#pragma unroll 1
      for (; !walk.is_last(); walk.next()) step<true>(at, work, walk, sums);
      step<false>(at, work, walk, sums);
    }
    ptx::sync_warps(1, Keys::kThreads);  // all have read k and v
    Keys::store_gradients(a, shared, group, Keys::work_of(a.args), sums.dk, sums.dv);
  }
};

template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_three_backward(const __grid_constant__ Sm90BackwardArgs a) {
  using Keys = Sm90Keys<kConfig>;
  extern __shared__ __align__(1024) char smem[];
  const auto shared = Keys::shared_of(ptx::shared_address(smem));
  if (threadIdx.x == 0) Keys::init(shared);
  __syncthreads();
  ptx::follow_previous_grid();
  const int group = __shfl_sync(ptx::kWholeWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    Keys::serve(a, shared);
  } else {
    ptx::take_registers<Keys::kTaken>();
    Sm90ThreeBackward<kConfig>::compute(a, shared, group - 1);
  }
}

}  // namespace dfa
