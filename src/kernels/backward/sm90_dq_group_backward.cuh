#pragma once

#include "kernels/backward/sm90_half_step.cuh"

// FlashAttention backward for sm_90a, fp16 and bf16, d and dv up to 64: as sm90_backward.cuh has
// it, but dq is made by the first warpgroup, which has registers for it there.
//
// A thread block owns 128 keys of one key head and walks the queries that see them, from the last
// tile of 128 on. Two warpgroups own 64 keys each and make dk, dv and ds of a tile in two halves;
// nothing but ds, of which there are two buffers, ties them to each other. The first warpgroup
// makes dq^T += k^T ds^T, waits for the block's turn and adds dq up, where nobody stands behind the
// additions; and a warp of it starts copies.
// Of a pair of blocks (`cluster` = 2) the first makes dq of the first half of every tile, the
// second of the other, of the keys of both, as sm90_pair_backward has it: each warp sends the other
// block its ds of that half through distributed shared memory. q is copied by the first for both,
// do by the second.
//   keys' warpgroups   s0 | dp0, s1: p0 | dv0: ds0 | dp1, dk0: p1 | dv1: ds1 | dk1, next s0
//   first warpgroup    dq of the tile before | additions | copies of the next but one
namespace dfa {

template <BackwardConfig kConfig>
struct Sm90DqGroupBackward {
  using Keys = Sm90Keys<kConfig>;
  using Dq = typename Keys::Dq;
  using Operand = typename Keys::Operand;
  using HalfStep = Sm90HalfStep<kConfig>;
  using Sums = typename HalfStep::Sums;
  using Shared = typename Keys::Shared;
  using Walk = typename Keys::Walk;
  static constexpr int kBlockQ = kConfig.block_q;
  static constexpr int kBlockK = kConfig.block_k;
  static constexpr int kHalves = 2;
  static_assert(kBlockQ == kHalves * Keys::kHalf && kConfig.head_dim == 64 &&
                kConfig.value_dim <= 64);
  static constexpr bool kPaired = Keys::kPaired;
  // Of ds: of half of a tile; of one of two buffers: both halves, or of a pair what is kept, what
  // has come, and what is sent.
  static constexpr int kHalfBytes = tile_bytes(kBlockK, Keys::kHalf);
  static constexpr int kDsBytes = (kPaired ? 3 : 2) * kHalfBytes;
  static constexpr int kComeDs = kHalfBytes, kSentDs = 2 * kHalfBytes;
  // Registers of a thread of the first warpgroup, and of those with keys.
  static constexpr int kServing = 72, kComputing = 216;
  static constexpr unsigned kTurnThread = 32, kPassThread = 64;  // of warps without copies

  // The stages and the buffer of ds of a block's nth step.
  struct Step : Shared {
    unsigned ds, buffer, phase;  // of the buffer
    DFA_DEVICE Step(const Shared& shared, unsigned n)
        : Shared(shared),
          ds(shared.base + Keys::kDsAt + n % 2 * kDsBytes),
          buffer(n % 2),
          phase(n / 2 % 2) {
      const auto put = [&](typename Keys::Ring& ring) {
        ring.stage = n % kConfig.stages;
        ring.phase = n / kConfig.stages % 2;
        if constexpr (!kPaired) ring.reused = n >= kConfig.stages;
      };
      put(this->q);
      put(this->d_o);
    }
    DFA_DEVICE void wait_ds_full() const { ptx::wait(this->ds_full(buffer), phase); }
    // Of a pair: is dq of that half made here?
    DFA_DEVICE static bool keeps(int half) { return half == Keys::rank(); }
    // Where half 0 would begin, for what goes to `half`.
    DFA_DEVICE unsigned ds_of(int half) const {
      if constexpr (!kPaired) return ds;
      return ds + (keeps(half) ? 0 : kSentDs) - half * kHalfBytes;
    }
    DFA_DEVICE void tell_ds_full(int half, int group) const {
      if (!kPaired && half + 1 < kHalves) return;
      __syncwarp();
      if (ptx::thread_index() % 32 != 0) return;
      if constexpr (!kPaired) {
        ptx::arrive(this->ds_full(buffer));
      } else if (keeps(half)) {  // and expects as much of its like in the other block
        ptx::arrive_expecting(this->ds_full(buffer), Keys::kWarpBytes);
      } else {
        const unsigned at = ds + (group * kGroupRows + Keys::warp_row()) * kPanelRowBytes;
        Keys::send_rows(Keys::rank(), at + kSentDs, at + kComeDs, this->ds_full(buffer));
      }
    }
    DFA_DEVICE void wait_ds_read() const { ptx::wait(this->ds_empty(buffer), phase); }
    DFA_DEVICE void wait_ds_empty(int half) const {
      if constexpr (kPaired) {
        ptx::wait(keeps(half) ? this->ds_empty(buffer) : this->sent_empty(buffer), phase ^ 1);
      } else if (half == 0) {
        ptx::wait(this->ds_empty(buffer), phase ^ 1);
      }
    }
    // A warp of those that make dq has read a buffer.
    DFA_DEVICE void give_ds_back() const {
      const unsigned lane = ptx::thread_index() % 32;
      if constexpr (kPaired) {
        if (lane >= 2) return;
        const bool own = static_cast<int>(lane) == Keys::rank();
        ptx::arrive_there(
            ptx::of_pair(own ? this->ds_empty(buffer) : this->sent_empty(buffer), lane));
      } else {
        if (lane == 0) ptx::arrive(this->ds_empty(buffer));
      }
    }
  };

  // One tile of queries. kMore: the next one's scores are queued meanwhile.
  template <bool kMore>
  static DFA_DEVICE void step(const KernelArgs& args, int query, int key, const Shared& shared,
                              unsigned n, int group, Sums& sums) {
    Operand p[kHalves], ds_rounded[kHalves];
    const Step at(shared, n), next(shared, n + 1);
    at.d_o.wait_full();
    ptx::wait_products<0>();
    ptx::pin(sums.p[0]);
    HalfStep::template run<0>(args, query, key, at, at.ds_of(0), group, sums, p, ds_rounded);
    HalfStep::template run<1>(args, query, key, at, at.ds_of(1), group, sums, p, ds_rounded);
    if constexpr (kMore) {
      next.q.wait_full();
      HalfStep::queue_s(sums.p[0], sums, shared.base, group, next.q.tile());
    }
    ptx::wait_products<kMore ? 2 : 1>();
    ptx::pin(sums.dv);
    ptx::pin(p[1]);
    at.d_o.release();
    ptx::wait_products<kMore ? 1 : 0>();
    ptx::pin(sums.dk);
    ptx::pin(ds_rounded[1]);
    at.q.release();
    if constexpr (kMore) Keys::load_pairs(sums.lse, next.lse());
  }

  static DFA_DEVICE void compute(const Sm90BackwardArgs& a, const Shared& shared, int group) {
    const KeyWork of_turn = Keys::turn_work(a.args), work = Keys::own_work(of_turn);
    Sums sums;
    Keys::clear(sums.dk);
    Keys::clear(sums.dv);
    Walk walk = Walk::of(a.args, of_turn);
    if (walk.any()) {
      const int key = work.key + group * kGroupRows;
      HalfStep::keep_seeing(sums, a.args, key);
      const Step first(shared, 0);
      ptx::wait(shared.k_full(), 0);
      HalfStep::hold_k(sums, shared.base, group);
      first.q.wait_full();
      HalfStep::queue_s(sums.p[0], sums, shared.base, group, first.q.tile());
      ptx::wait(shared.v_full(), 0);
      HalfStep::hold_v(sums, shared.base, group);
      Keys::load_pairs(sums.lse, first.lse());
      unsigned n = 0;
#pragma unroll 1
      for (; !walk.is_last(); walk.next()) {
        step<true>(a.args, walk.tile * kBlockQ, key, shared, n++, group, sums);
      }
      step<false>(a.args, walk.tile * kBlockQ, key, shared, n, group, sums);
      Step(shared, n).wait_ds_read();  // and k, for the last time
    }
    Keys::store_gradients(a, shared, group, work, sums.dk, sums.dv);
  }

  // The first warpgroup.

  // What it knows of a tile lies in shared memory, as registers are few: of the tile in each stage
  // which of all tiles it is, whether this block is the first to add to it, its turn's counter and
  // number, and whether it starts and ends the turn; and where the walk stands, a tile ahead.
  static DFA_DEVICE unsigned note(const Shared& shared, unsigned n) {
    return shared.base + Keys::kNotesAt + 32 + n % kConfig.sm90_notes() * 16;
  }
  static constexpr unsigned kStarts = 1u << 30, kEnds = 1u << 31;

  static DFA_DEVICE void park(const Shared& shared, const KeyWork& work, const Walk& walk) {
    const unsigned to = shared.base + Keys::kNotesAt;
    const int values[] = {walk.tile,      walk.head,  walk.tiles.begin, walk.tiles.end,
                          walk.last_head, work.batch, work.key};
#pragma unroll
    for (int i = 0; i < 7; ++i) {
      ptx::store_shared(to + 4 * i, static_cast<unsigned>(values[i]));
    }
  }
  static DFA_DEVICE int parked(const Shared& shared, int i) {
    return static_cast<int>(ptx::load_shared(shared.base + Keys::kNotesAt + 4 * i));
  }

  static DFA_DEVICE void write_note(const KernelArgs& args, const Shared& shared, unsigned n,
                                    const KeyWork& work, const Walk& walk) {
    const typename Dq::Head head{work.batch, walk.head};
    const unsigned to = note(shared, n);
    ptx::store_shared(to, Dq::index(args, head, walk.tile));
    if constexpr (Dq::kOrdered) {
      ptx::store_shared(to + 4, Dq::is_first(args, walk.tile, work.key));
      ptx::store_shared(to + 8, static_cast<unsigned>(Dq::counter(args, head, walk.tile) -
                                                      args.turns + Keys::rank()));
      ptx::store_shared(to + 12, Dq::turn(args, walk.tile, work.key) |
                                     (Dq::starts_turn(walk.tile, walk.tiles.end) ? kStarts : 0) |
                                     (Dq::ends_turn(walk.tile, walk.tiles.begin) ? kEnds : 0));
    }
  }

  // The next tile, block's nth, into its stage, by a whole warp.
  static DFA_DEVICE void load(const Sm90BackwardArgs& a, const Shared& shared, unsigned n) {
    __syncwarp();
    const KeyWork work{parked(shared, 5), 0, parked(shared, 6)};
    Walk walk{{parked(shared, 2), parked(shared, 3)},
              parked(shared, 0),
              parked(shared, 1),
              parked(shared, 4)};
    __syncwarp();
    if (!walk.more()) return;
    const Step at(shared, n);
    Keys::template load_queries<kConfig.head_dim>(at.q, a.q, at.lse(), a.args.lse_log2, a.args,
                                                  work, walk);
    Keys::template load_queries<kConfig.value_dim, 1>(at.d_o, a.d_o, at.delta(), a.args.delta,
                                                      a.args, work, walk);
    if (!Keys::starts_copies()) return;
    write_note(a.args, shared, n, work, walk);
    walk.next();
    park(shared, work, walk);
  }

  // A turn that has ended, to be passed on beside the next product.
  struct Turn {
    unsigned counter = 0, own = 0;  // as noted
  };

  // dq's shares of the block's nth tile, added up in its turn.
  static DFA_DEVICE void add_shares(const Sm90BackwardArgs& a, const Shared& shared, unsigned n,
                                    Turn& last) {
    const Step at(shared, n);
    float* sums = Dq::lane_sums(a.args, ptx::load_shared(note(shared, n)), Keys::rank());
    unsigned first = Dq::kOrdered ? ptx::load_shared(note(shared, n) + 4) : 0;
    asm volatile("" : "+l"(sums), "+r"(first));  // made before products have their registers
    at.wait_ds_full();
    if constexpr (kPaired) return add_half(a, shared, n, at, sums, first, last);
#pragma unroll
    for (int place = 0; place < Dq::kPlaces; ++place) {
      typename Dq::Share share;
      Keys::queue_dq(share, at.base, at.ds, place);
      if (place == 0) {
        if constexpr (Dq::kOrdered) {
          if (ptx::thread_index() == kPassThread) pass_on(a.args, last);
          last = {ptx::load_shared(note(shared, n) + 8), ptx::load_shared(note(shared, n) + 12)};
          if (ptx::thread_index() == kTurnThread) await_turn(a.args, last);
        }
        ptx::sync_warps(1, kGroupThreads);  // also: all have read the note
      } else if (ptx::thread_index() / 32 == 0) {
        load(a, shared, n + kConfig.stages);
      }
      ptx::wait_products<0>();
      ptx::pin(share);
      if (place + 1 == Dq::kPlaces) at.give_ds_back();
      Dq::add_to(sums + Dq::place_floats(place), first != 0, share);
    }
    if constexpr (Dq::kOrdered) ptx::sync_warps(1, kGroupThreads);  // all have added
  }

  // Likewise of a pair: of the half whose dq is made here, of the keys of both blocks.
  static DFA_DEVICE void add_half(const Sm90BackwardArgs& a, const Shared& shared, unsigned n,
                                  const Step& at, float* sums, unsigned first, Turn& last) {
    typename Dq::Share share;
    ptx::pin(share);
    ptx::fence_products();
    Keys::template multiply_dq<0>(share, Keys::dq_left(at.base, 0), Keys::dq_right(at.ds, 0));
    Keys::template multiply_dq<1>(share, Keys::dq_left(at.base + Keys::kOthersKAt, 0),
                                  Keys::dq_right(at.ds + kComeDs, 0));
    ptx::commit_products();
    if constexpr (Dq::kOrdered) {
      if (ptx::thread_index() == kPassThread) pass_on(a.args, last);
      last = {ptx::load_shared(note(shared, n) + 8), ptx::load_shared(note(shared, n) + 12)};
      if (ptx::thread_index() == kTurnThread) await_turn(a.args, last);
    }
    if (ptx::thread_index() / 32 == 0) load(a, shared, n + kConfig.stages);
    ptx::sync_warps(1, kGroupThreads);
    ptx::wait_products<0>();
    ptx::pin(share);
    at.give_ds_back();
    Dq::add_to(sums, first != 0, share);
    if constexpr (Dq::kOrdered) ptx::sync_warps(1, kGroupThreads);  // all have added
  }

  static DFA_DEVICE void await_turn(const KernelArgs& args, const Turn& turn) {
    if ((turn.own & kStarts) == 0) return;
    while (ptx::load_acquire(args.turns + turn.counter) != (turn.own & (kStarts - 1))) {
      __nanosleep(32);
    }
  }

  static DFA_DEVICE void pass_on(const KernelArgs& args, const Turn& turn) {
    if ((turn.own & kEnds) == 0) return;
    ptx::store_release(args.turns + turn.counter, (turn.own & (kStarts - 1)) + 1);
  }

  static DFA_DEVICE void serve(const Sm90BackwardArgs& a, const Shared& shared) {
    unsigned steps = 0;
    const bool copies = ptx::thread_index() / 32 == 0;
    {
      const KeyWork work = Keys::turn_work(a.args);
      const Walk walk = Walk::of(a.args, work);
      if (!walk.any()) return;
      steps = static_cast<unsigned>((walk.last_head - walk.head + 1) *
                                    (walk.tiles.end - walk.tiles.begin));
      if (copies) {
        Keys::load_keys(a, shared, Keys::own_work(work));
        if (Keys::starts_copies()) park(shared, work, walk);
      }
    }
    if (copies) {
#pragma unroll 1
      for (unsigned n = 0; n < kConfig.stages; ++n) load(a, shared, n);
    }
    ptx::sync_warps(1, kGroupThreads);
    ptx::wait(shared.k_full(), 0);
    if constexpr (kPaired) ptx::wait(shared.v_full(), 0);  // with k of the other block
    Turn last;
#pragma unroll 1
    for (unsigned n = 0; n < steps; ++n) add_shares(a, shared, n, last);
    if (ptx::thread_index() == kPassThread) pass_on(a.args, last);
    if constexpr (!kPaired) {
      if (ptx::thread_index() / 32 != 0) return;
      const Step end(shared, steps);
      end.d_o.wait_all_empty();
      end.q.wait_all_empty();
    }
  }
};

template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_dq_group_backward(const __grid_constant__ Sm90BackwardArgs a) {
  using Keys = Sm90Keys<kConfig>;
  extern __shared__ __align__(1024) char smem[];
  const auto shared = Keys::shared_of(ptx::shared_address(smem));
  if (threadIdx.x == 0) Keys::init(shared);
  if constexpr (Keys::kPaired) {
    ptx::sync_cluster();
  } else {
    __syncthreads();
  }
  ptx::follow_previous_grid();
  const int group = __shfl_sync(ptx::kWholeWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    ptx::give_registers<Sm90DqGroupBackward<kConfig>::kServing>();
    Sm90DqGroupBackward<kConfig>::serve(a, shared);
  } else {
    ptx::take_registers<Sm90DqGroupBackward<kConfig>::kComputing>();
    Sm90DqGroupBackward<kConfig>::compute(a, shared, group - 1);
  }
  if constexpr (Keys::kPaired) ptx::sync_cluster();  // neither ends while the other sends to it
}

}  // namespace dfa
