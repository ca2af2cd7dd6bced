#pragma once

#include "kernels/backward/sm90_half_step.cuh"

// FlashAttention backward for sm_90a by pairs of thread blocks, in fp16 and bf16, d and dv up to
// 128 (dv up to 64 where d is): sm90_backward with half of its traffic beside the tensor cores.
//
// Two neighbours of a cluster own 128 keys each of one key head and walk the same queries, which
// each copies half of for both. They make dq of tiles alternately, of the keys of both:
//   dq^T += k^T ds^T + k'^T ds'^T     where ' is of the other block
// so a tile has one addition to dq where it had two. The block that makes it keeps its ds, the
// other sends its own through distributed shared memory, each warp its 16 rows or, up to 64
// columns, a thread beside them those of a warpgroup (sm90_semaphore_releaser.cuh). A tile's dq is
// made a step later, when the block has no ds of its own to keep: nobody waits for ds that has only
// just been made, and warpgroups of a block meet nowhere.
//
// With `persistent` a pair stays and takes keys of one head after the other (DynamicTileScheduler):
// rings, tiles of ds and semaphores go on counting, the next work tile's queries and v come in the
// last one's last steps, its k behind the last dq, while gradients leave through places of ds.
namespace dfa {

template <BackwardConfig kConfig>
struct Sm90PairBackward {
  using Keys = Sm90Keys<kConfig>;
  using Dq = typename Keys::Dq;
  using Operand = typename Keys::Operand;
  using Shared = typename Keys::Shared;
  using Walk = typename Keys::Walk;
  using WorkTile = typename Keys::WorkTile;
  using Parts = Sm90SplitQ<kConfig, Keys>;
  using HalfStep = Sm90HalfStep<kConfig>;
  using Sums = typename HalfStep::Sums;
  static constexpr int kBlockQ = kConfig.block_q;
  static constexpr int kBlockK = kConfig.block_k;
  static constexpr int kHalves = HalfStep::kHalves;
  static_assert(Keys::kPaired);

  // Tiles of ds: of this block and of the other where dq is made here, and to be sent.
  static constexpr int kOthersDs = Keys::kDsBytes;
  static constexpr int kSentDs = 2 * Keys::kDsBytes;

  // The n-th tile of queries, as one of both blocks sees it.
  struct Step : Shared {
    // Where pairs stay, with work tiles counted in the last two bits: registers are few.
    unsigned n = 0;
    int rank, group;
    bool any = false;  // of this work tile before

    DFA_DEVICE Step(const Shared& shared, int group)
        : Shared(shared), rank(Keys::rank()), group(group) {}

    DFA_DEVICE bool makes_dq() const { return (n + rank) % 2 == 0; }
    // Is dq of the tile before left to this step?
    DFA_DEVICE bool owes_dq() const { return any && !makes_dq(); }
    // Of what comes once for every tile whose dq is made here, or there.
    DFA_DEVICE unsigned phase() const { return n / 2 % 2; }
    DFA_DEVICE unsigned phase_before() const { return (n - 1) / 2 % 2; }

    static constexpr unsigned kWork = 1u << 30;
    DFA_DEVICE unsigned work_tiles() const { return Keys::kPersistent ? n / kWork : 0; }
    DFA_DEVICE unsigned keys_phase() const { return work_tiles() % 2; }
    DFA_DEVICE void end_work_tile() {
      n += kWork;
      any = false;
    }
    // Of a work tile in parts, which one this is, in bits below those (SplitQ); of tiles before
    // only the last bits matter.
    static constexpr unsigned kPart = 1u << 22, kParts = kWork / kPart;
    DFA_DEVICE void begin_part(int part) {
      n = (n & ~(kWork - 4)) + static_cast<unsigned>(part) * kPart;
    }
    DFA_DEVICE int part() const { return static_cast<int>(n / kPart % kParts); }

    DFA_DEVICE unsigned ds() const { return this->base + Keys::kDsAt; }
    DFA_DEVICE unsigned ds_of_step() const { return ds() + (makes_dq() ? 0 : kSentDs); }

    // What was kept or sent two steps ago has been read.
    DFA_DEVICE void wait_ds_empty(int half) const {
      if (half > 0) return;
      ptx::wait(makes_dq() ? this->ds_read() : this->sent_read(), phase() ^ 1);
    }

    // Whatever was kept or sent has been.
    DFA_DEVICE void wait_places_empty() const {
      const unsigned next = n + 1, kept = makes_dq() ? n : next, sent = makes_dq() ? next : n;
      ptx::wait(this->ds_read(), kept / 2 % 2 ^ 1);
      ptx::wait(this->sent_read(), sent / 2 % 2 ^ 1);
    }
    // By each warp.
    DFA_DEVICE void give_back(unsigned barrier) const {
      __syncwarp();
      if (Keys::lane() == 0) ptx::arrive(barrier);
    }

    // A half leaves as soon as it is there. Each warp expects as much of both as it has: of its
    // like in the other block.
    DFA_DEVICE void tell_ds_full(int half, int) const {
      __syncwarp();
      if (!ptx::elect()) return;
      if (makes_dq()) {
        if (half + 1 == kHalves) {
          ptx::arrive_expecting(this->ds_there(), kHalves * Keys::kWarpBytes);
        }
      } else if constexpr (kConfig.sm90_sends_ds()) {
        ptx::arrive(this->ds_stored(half, group));
      } else {
        const unsigned at = ds() + (group * kGroupRows + Keys::warp_row()) * kPanelRowBytes +
                            half * panel_bytes(kBlockK);
        Keys::send_rows(rank, at + kSentDs, at + kOthersDs, this->ds_there());
      }
    }

    // No register holds the warpgroup's index from before to behind this.
    DFA_DEVICE void recall_group() {
      group = __shfl_sync(ptx::kWholeWarp, static_cast<int>(Keys::thread() / 128) - 1, 0);
    }

    // No register holds what follows from places in shared memory, from before to behind this.
    DFA_DEVICE void forget_places() {
      ptx::forget(this->base);
      const Shared fresh = Keys::shared_of(this->base);
      this->q.tiles = fresh.q.tiles;
      this->q.barriers = fresh.q.barriers;
      this->d_o.tiles = fresh.d_o.tiles;
      this->d_o.barriers = fresh.d_o.barriers;
    }

    DFA_DEVICE void give_ds_back() const {
      if (Keys::lane() >= 2) return;
      const bool own = static_cast<int>(Keys::lane()) == rank;
      ptx::arrive_there(ptx::of_pair(own ? this->ds_read() : this->sent_read(), Keys::lane()));
    }
  };

  // Where registers are too few to keep it from step to step.
  static constexpr bool kSeqAgain = kConfig.head_dim > kPanelColumns;

  // Where registers last for reading lse ahead of the products of scores.
  static constexpr bool kLseFirst = kHalves == 1 && !HalfStep::kTextFirst;
  static DFA_DEVICE void await_tile(const Step& at, Sums& sums) {
    if constexpr (kHalves > 1) Keys::load_pairs(sums.lse, at.lse());
    at.d_o.wait_full();
  }

  // Where pairs stay, which block makes a tile's dq depends on the work tiles before: keys of the
  // first come first there, so that the bits do not.
  static DFA_DEVICE void queue_dq(typename Dq::Share& share, const Step& at) {
    if constexpr (Keys::kPersistent) ptx::wait(at.others_k_full(), at.keys_phase());
    const bool others_first = Keys::kPersistent && at.rank == 1;
    const unsigned others_keys = at.base + Keys::kOthersKAt, others_ds = at.ds() + kOthersDs;
    ptx::pin(share);
    ptx::fence_products();
    Keys::template multiply_dq<0>(share,
                                  Keys::dq_left(others_first ? others_keys : at.base, at.group),
                                  Keys::dq_right(others_first ? others_ds : at.ds(), at.group));
    Keys::template multiply_dq<1>(share,
                                  Keys::dq_left(others_first ? at.base : others_keys, at.group),
                                  Keys::dq_right(others_first ? at.ds() : others_ds, at.group));
    ptx::commit_products();
  }

  static DFA_DEVICE void add_dq(const KernelArgs& args, const WorkTile& pair, const Walk& walk,
                                const Step& at, unsigned phase, const typename Dq::Share& share) {
    if constexpr (Dq::kSerialized) ptx::wait(at.acquired(), phase);
    const auto seq = kSeqAgain ? Keys::again(at, pair).seq : pair.seq;
    Dq::add(args, {seq, walk.head}, walk.tile, pair.key, at.group, share);
    if constexpr (Dq::kSerialized) {
      __syncwarp();
      if (Keys::lane() == 0) ptx::arrive(at.added());
    }
  }

  static DFA_DEVICE void pin_dk(Sums& sums, Operand (&ds_rounded)[kHalves]) {
    ptx::pin(sums.dk);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) ptx::pin(ds_rounded[h]);
  }
  static DFA_DEVICE void queue_next(const Step& at, Sums& sums) {
    at.q.wait_full();
    if constexpr (kLseFirst) Keys::load_pairs(sums.lse, at.lse());
    HalfStep::queue_s(sums.p[0], sums, at.base, at.group, at.q.tile());
  }

  // The end of a step, dk being there: q goes back, the next scores are queued.
  template <bool kMore>
  static DFA_DEVICE void pass_q(Step& at, Sums& sums, Operand (&ds_rounded)[kHalves]) {
    pin_dk(sums, ds_rounded);
    at.q.release(Keys::lane());
    at.q.next();
    if constexpr (kMore) queue_next(at, sums);
  }

  // One tile of queries. kMore: the next one's scores are queued meanwhile.
  template <bool kMore>
  static DFA_DEVICE void step(const KernelArgs& args, const WorkTile& pair, const Walk& walk,
                              Step& at, Sums& sums) {
    Operand p[kHalves], ds_rounded[kHalves];
    if constexpr (Keys::kPersistent) at.place(at.n);
    ptx::wait_products<0>();
    ptx::pin(sums.p[0]);
    const int query = walk.tile * kBlockQ;
    const int key = Keys::key_of(pair.key, at.rank, at.group);
    const unsigned ds = at.ds_of_step();
    HalfStep::template run<0>(args, pair.seq, walk.head, query, key, at, ds, at.group, sums, p,
                              ds_rounded);
    if constexpr (kHalves == 2) {
      HalfStep::template run<1>(args, pair.seq, walk.head, query, key, at, ds, at.group, sums, p,
                                ds_rounded);
    }
    if constexpr (Keys::kPersistent && !HalfStep::kHeldWhole && !kMore && !kConfig.masked) {
      at.give_back(at.v_empty());
    }
    ptx::wait_products<1>();
    ptx::pin(sums.dv);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) ptx::pin(p[h]);
    at.d_o.release(Keys::lane());
    at.d_o.next();
    if (at.owes_dq()) {
      typename Dq::Share share;
      ptx::wait(at.ds_there(), at.phase_before());
      queue_dq(share, at);
      ptx::wait_products<1>();
      pass_q<kMore>(at, sums, ds_rounded);
      ptx::wait_products<kMore ? 1 : 0>();
      ptx::pin(share);
      at.give_ds_back();
      if constexpr (kMore) await_tile(at, sums);
      add_dq(args, pair, walk.before(), at, at.phase_before(), share);
    } else if constexpr (kHalves == 2) {  // registers last for scores beside dk
      const auto read = at.q;
      at.q.next();
      if constexpr (kMore) queue_next(at, sums);
      ptx::wait_products<kMore ? 1 : 0>();
      pin_dk(sums, ds_rounded);
      read.release(Keys::lane());
      if constexpr (kMore) await_tile(at, sums);
    } else {
      ptx::wait_products<0>();
      pass_q<kMore>(at, sums, ds_rounded);
      if constexpr (kMore) await_tile(at, sums);
    }
    ++at.n;
    at.any = true;
    if constexpr (kMore) draw_ahead<true>(args, pair, walk, at, sums);
  }

  // Of a dropout, of the tile at `walk`, or of the one behind it.
  template <bool kBehind>
  static DFA_DEVICE void draw_ahead(const KernelArgs& args, const WorkTile& pair, const Walk& walk,
                                    const Step& at, Sums& sums) {
    HalfStep::template draw_ahead<kBehind>(
        args, pair.seq, walk, Keys::key_of(pair.key, at.rank, at.group), at, at.group, sums);
  }

  // Behind the last step: its dq, where it is made here.
  static DFA_DEVICE void end_dq(const KernelArgs& args, const WorkTile& pair, const Walk& last,
                                const Step& at) {
    typename Dq::Share share;
    ptx::wait(at.ds_there(), at.phase_before());
    queue_dq(share, at);
    ptx::wait_products<0>();
    ptx::pin(share);
    if constexpr (Keys::kPersistent) at.give_ds_back();
    add_dq(args, pair, last, at, at.phase_before(), share);
  }

  // Of a pair that stays: through places of ds, as the next keys come into those of k and v.
  static constexpr int kDkAt = kHalves == 1 ? 0 : panel_bytes(kBlockK);
  static DFA_DEVICE void store_gradients(const Sm90BackwardArgs& a, const WorkTile& work,
                                         const Step& at, const Sums& sums) {
    at.wait_places_empty();
    wait_stored();  // of the work before, where this one had no tile
    Keys::template store_gradient<kSentDs>(a.args, a.dv, at.ds(), at.group, work, sums.dv,
                                           Keys::Factor::of(a.args).factor);
    if constexpr (kHalves == 1) wait_stored();
    Keys::template store_gradient<kSentDs>(a.args, a.dk, at.ds() + kDkAt, at.group, work, sums.dk,
                                           a.args.scale);
  }
  // The same of a work tile in parts.
  static DFA_DEVICE void store_joined(const Sm90BackwardArgs& a, const WorkTile& work,
                                      const Step& at, const Parts& parts) {
    at.wait_places_empty();
    wait_stored();
    parts.template join<kSentDs, 0, Keys::kValues>(a.args, a.dv, at.ds(), at.group, work,
                                                   Keys::Factor::of(a.args).factor);
    if constexpr (kHalves == 1) wait_stored();
    parts.template join<kSentDs, Keys::kValues, Keys::kDims>(a.args, a.dk, at.ds() + kDkAt,
                                                             at.group, work, a.args.scale);
  }
  // The warp's stores have been read.
  static DFA_DEVICE void wait_stored() {
    ptx::wait_stores_read();
    __syncwarp();
  }

  // A step of queries that see none of this warpgroup's keys: its ds is 0, and dq of the tile
  // before is made as always.
  static DFA_DEVICE void let_pass(const KernelArgs& args, const WorkTile& pair, const Walk& walk,
                                  Step& at) {
    constexpr Operand kNone = {};
    if constexpr (Keys::kPersistent) at.place(at.n);
    at.q.wait_full();
    at.d_o.wait_full();
    at.wait_ds_empty(0);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      store_rows<kBlockK>(at.ds_of_step() + half * panel_bytes(kBlockK),
                          at.group * kGroupRows + Keys::warp_row(), kNone, Keys::lane());
    }
    ptx::fence_async();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) at.tell_ds_full(half, at.group);
    at.q.release(Keys::lane());
    at.d_o.release(Keys::lane());
    if (at.owes_dq()) {
      typename Dq::Share share;
      ptx::wait(at.ds_there(), at.phase_before());
      queue_dq(share, at);
      ptx::wait_products<0>();
      ptx::pin(share);
      at.give_ds_back();
      add_dq(args, pair, walk.before(), at, at.phase_before(), share);
    }
    at.q.next();
    at.d_o.next();
    ++at.n;
    at.any = true;
  }

  // Of pairs that stay: does v's place serve until a work tile's end? Else until v is in registers,
  // or until the last step has read it.
  static constexpr bool kVToTheEnd = !HalfStep::kHeldWhole && kConfig.masked;
  // Where registers are too few to keep the warpgroup's index beside the loops.
  static constexpr bool kGroupRecalled = Keys::kPersistent && kConfig.masked;

  // All steps, the first scores being queued.
  static DFA_DEVICE void walk_all(const KernelArgs& args, const WorkTile& pair, Walk& walk,
                                  Step& at, Sums& sums) {
    await_tile(at, sums);
    draw_ahead<false>(args, pair, walk, at, sums);
#pragma unroll 1
    for (; !walk.is_last(); walk.next()) step<true>(args, pair, walk, at, sums);
    step<false>(args, pair, walk, at, sums);
  }

  // The same, no scores being queued, without products of queries that see none of this
  // warpgroup's keys: under a mask the pair walks those that see any of its 256.
  static DFA_DEVICE void walk_seen(const KernelArgs& args, const WorkTile& pair, Walk& walk,
                                   Step& at, Sums& sums) {
#pragma unroll 1
    while (true) {
      if constexpr (!Keys::kPersistent) at.forget_places();
      if constexpr (kGroupRecalled) at.recall_group();
      const TileRange seen = query_tiles(MaskOf<kConfig>::of(args, Keys::again(at, pair).seq),
                                         Keys::key_of(Keys::again(at, pair).key, at.rank, at.group),
                                         kGroupRows, kBlockQ);
      int left = walk.left_of(seen);
      if (left > 0) {
        queue_next(at, sums);
        await_tile(at, sums);
        draw_ahead<false>(args, pair, walk, at, sums);
#pragma unroll 1
        for (; left > 1; --left, walk.next()) step<true>(args, pair, walk, at, sums);
        step<false>(args, pair, walk, at, sums);
      } else {
        let_pass(args, pair, walk, at);
      }
      if (walk.is_last()) break;
      walk.next();
    }
  }

  static DFA_DEVICE void compute(const Sm90BackwardArgs& a, const WorkTile& pair, Step& at) {
    Sums sums;
    Keys::clear(sums.dk);
    Keys::clear(sums.dv);
    Walk walk = Walk::of(a.args, pair);
    if constexpr (kConfig.split_q) at.begin_part(pair.part);
    HalfStep::keep_seeing(sums, a.args, pair.seq, Keys::key_of(pair.key, at.rank, at.group));
    if (Keys::kPersistent || walk.any()) ptx::wait(at.k_full(), at.keys_phase());
    if (walk.any()) {
      HalfStep::hold_k(sums, at.base, at.group);
      if constexpr (!kConfig.masked) queue_next(at, sums);
      ptx::wait(at.v_full(), at.keys_phase());
      HalfStep::hold_v(sums, at.base, at.group);
      if constexpr (Keys::kPersistent && HalfStep::kHeldWhole && !kVToTheEnd) {
        at.give_back(at.v_empty());
      }
      if constexpr (Keys::kPersistent) wait_stored();  // of the work before, from where ds goes
      if constexpr (kConfig.masked) {
        walk_seen(a.args, pair, walk, at, sums);
      } else {
        walk_all(a.args, pair, walk, at, sums);
      }
      if (at.owes_dq()) end_dq(a.args, pair, walk, at);
    }
    if constexpr (kGroupRecalled) at.recall_group();
    const WorkTile work = Keys::own_work_tile(Keys::again(at, pair), at.group);
    if constexpr (Keys::kPersistent) {
      if constexpr (Keys::kCounts) {
        ptx::wait(at.seen(), at.keys_phase() ^ 1);  // of the work before: short ones follow fast
        at.give_back(at.added());
      }
      if (!walk.any() || kVToTheEnd) at.give_back(at.v_empty());
      ptx::wait(at.others_k_full(), at.keys_phase());  // read or not: it is there
      at.give_back(at.k_empty());
      if constexpr (kConfig.split_q) {
        if (at.part() == 0) {
          store_gradients(a, work, at, sums);
        } else {
          const Parts parts(a.args, pair, at.group);
          if (parts.leave(at.part(), sums)) store_joined(a, work, at, parts);
        }
      } else {
        store_gradients(a, work, at, sums);
      }
      at.end_work_tile();
    } else {
      ptx::sync_warps(1, Keys::kThreads);  // all have read k
      Keys::store_gradients(a, at, at.group, work, sums.dk, sums.dv);
    }
  }

  static DFA_DEVICE void compute(const Sm90BackwardArgs& a, const Shared& shared, int group) {
    Step at(shared, group);
    if constexpr (!Keys::kPersistent) {
      compute(a, Keys::cluster_work_tile(a.args, shared), at);
    } else {
      WorkTile pair;
#pragma unroll 1
      while (shared.queue(at.work_tiles()).template next<true>(pair)) compute(a, pair, at);
      ptx::wait_stores_read();
    }
  }
};

template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_pair_backward(const __grid_constant__ Sm90BackwardArgs a) {
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
  ptx::sync_cluster();
  ptx::griddepcontrol_wait();
  const int group = __shfl_sync(ptx::kWholeWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    Keys::serve(a, shared);
  } else {
    ptx::setmaxnreg_inc<Keys::kTaken>();
    Sm90PairBackward<kConfig>::compute(a, shared, group - 1);
  }
  ptx::sync_cluster();  // neither ends while the other sends to it
}

}  // namespace dfa
