#pragma once

#include "kernels/backward/sm90_keys.cuh"
#include "kernels/variant/dropout.cuh"

// FlashAttention backward for sm_90a where d or dv is larger than 128, or logits are made of
// scores, in fp16 and bf16.
//
// A thread block owns 64 keys of one key head, whose dk and dv fill its registers: one warpgroup
// has dv, another dk, of all 64 keys. The walk, the copies and the dq semaphore are
// sm90_backward's, and everything is transposed as there; but each makes the scores that its
// gradient takes:
//   of dv:  p^T  = exp2(scale_log2 k q^T - lse_log2)      dv += p^T do
//   of dk:  ds^T = p^T * (v do^T - delta)                 dk += ds^T q
//   both:   dq^T += k^T ds^T, 64 columns at a time
// p goes to the other in fp32, ds comes back rounded, each through one place in shared memory:
//   of dv  p ──▶ dv, next k q^T ·········· ds ──▶ one share of dq ──▶ add ──▶ p of the next tile
//   of dk  ········ p ──▶ ds ──▶ dk, next v do^T, share of dq ──▶ add, share, add … ──▶ wait for p
// Neither place needs a second one: who writes p has seen ds, so the last p has been read, and who
// writes ds has seen p, so the last shares have been made. While one makes p or ds or adds to dq,
// the products that the other has queued run.
// With `cluster` = 2 neighbours own neighbouring keys and walk the queries that either's see. Each
// copies every second panel of q and do for both, and makes half of the shares of dq, of the keys
// of both: k of the other lies beside one's own, and a tile's ds goes to the other as soon as it is
// made. So half as much is added to dq. A tile's dq is made a step later, from two places for
// either's ds, so that nobody waits for what was sent only just now, and with d and dv up to 192
// added one more step later, beside products. Some columns of k and v may be left operands from
// registers (`holds_keys`), which leaves more of shared memory's cycles to the others. With
// `persistent` pairs stay: the next keys come when the gradients of the last, which leave through
// the places of k and v, have been read there, and the next first queries before. Fused, a share
// of earlier heads' sums of dq is rounded meanwhile.
// Softcap, ALiBi and biases, of every d, are made where p is: of capped scores the other is told p
// times the derivative of tanh. Weights that a dropout takes are told with a negative sign, by
// draws that are made a step ahead, half of them by each of two warps. ds may be added to the
// gradient of a bias. Limits: d and dv up to 256; of plain scores d from 65 on; strides in
// multiples of 16 bytes.
namespace dfa {

template <BackwardConfig kConfig>
struct Sm90WideBackward {
  using Keys = Sm90Keys<kConfig>;
  using Dq = typename Keys::Dq;
  using Operand = typename Keys::Operand;
  using Pairs = typename Keys::Pairs;
  using Scores = typename Keys::Scores;
  using Shared = typename Keys::Shared;
  using Walk = typename Keys::Walk;
  using WorkTile = typename Keys::WorkTile;
  static constexpr int kThreads = Keys::kThreads;
  static constexpr int kPAt = Keys::kDsAt + tile_bytes(kConfig.block_k, kConfig.block_q);
  static constexpr bool kPaired = Keys::kPaired;
  static constexpr unsigned kDsPlaces = kPaired ? 2 : 1;
  static_assert(Keys::kHalf == kConfig.block_q && kConfig.block_k == kGroupRows);

  // Named barriers behind the rings'.
  static constexpr unsigned kPIsThere = 2 + 2 * kConfig.stages;
  static constexpr unsigned kDsIsThere = kPIsThere + 1;
  static constexpr unsigned kDsIsOurs = kPIsThere + 2;       // among the warps that write it
  static constexpr unsigned kDrawsAreThere = kPIsThere + 3;  // of a work tile's first tile
  static_assert(kDrawsAreThere < 16);

  // Shares of dq that the warpgroup of dv makes, from the first on; the other, which waits for p
  // meanwhile, the rest.
  static constexpr int kSharesOfDv = Dq::kPlaces > 1 ? 1 : 0;
  static_assert(kSharesOfDv < Dq::kPlaces);

  using Dropout = DropoutOf<kConfig>;
  static constexpr bool kMakesLogits =
      kConfig.softcap || kConfig.alibi || kConfig.bias || kConfig.dropout || kConfig.text;
  // Where registers last for the next tile's biases beside a share of dq.
  static constexpr bool kBiasesAhead = kConfig.value_dim <= 128;

  // A block's place in its walk, of each warpgroup.
  struct Step {
    const KernelArgs& args;
    WorkTile work;
    Walk walk;
    Shared shared;
    unsigned phase;  // of acquired()
    // Tiles before. Where pairs stay, in one register: those of all work tiles, whether dq of the
    // tile before is owed, and in two bits the work tiles before.
    unsigned count = 0;
    static constexpr unsigned kOwed = 4;
    DFA_DEVICE unsigned n() const { return Keys::kPersistent ? count / 8 : count; }
    DFA_DEVICE unsigned work_tiles() const { return count % 4; }
    DFA_DEVICE bool owes_dq() const { return Keys::kPersistent ? (count & kOwed) != 0 : count > 0; }
    DFA_DEVICE void end_step() {
      if constexpr (Keys::kPersistent) {
        count = (count + 8) | kOwed;
      } else {
        ++count;
      }
    }
    // Where pairs stay: takes the next one, if there is any.
    DFA_DEVICE bool next_work_tile() {
      WorkTile pair;
      if (!shared.queue(work_tiles()).template next<true>(pair)) return false;
      work = Keys::own_work_tile(pair);
      walk = Walk::of(args, pair);
      return true;
    }
    // Whose gradients are stored: where a register is wanted elsewhere, found out anew.
    DFA_DEVICE WorkTile stored_work_tile() const {
      if constexpr (kConfig.varlen) return Keys::work_tile_of(args, shared);
      if constexpr (!Keys::kCounts) return work;
      return {work.seq, walk.last_head / (args.hq / args.hk), work.key};
    }
    DFA_DEVICE void end_work_tile() { count = (count & ~7U) | ((count + 1) & 3); }
    DFA_DEVICE void place() {
      if constexpr (Keys::kPersistent) shared.place(n());
    }

    DFA_DEVICE unsigned keys_phase() const { return count % 2; }
    // Where sums of dq are rounded in the same grid: every warp has added all it adds to them.
    DFA_DEVICE void tell_added() const {
      if constexpr (Keys::kCounts) {
        ptx::wait(shared.seen(), keys_phase() ^ 1);  // of the work before
        give_back(shared.added());
        ptx::wait(shared.complete(), keys_phase());  // of what is rounded next
      }
    }
    // A share of the sums of work tiles before, which have been added up: they come while gradients
    // leave, and are rounded while the next keys come.
    using Rounded = typename Keys::Rounding::Share;
    DFA_DEVICE void begin_rounding(Rounded& share) const {
      if constexpr (Keys::kCounts) {
        share.begin(args, work_tile_index<kConfig.cluster_keys()>(args, stored_work_tile()));
      }
    }
    DFA_DEVICE void end_rounding(Rounded& share) const {
      if constexpr (Keys::kCounts) share.end(args);
    }
    // Of a work tile that is not the last: every warp has read what a barrier is for.
    DFA_DEVICE void give_back(unsigned barrier) const {
      __syncwarp();
      if (ptx::thread_index() % 32 == 0) ptx::arrive(barrier);
    }

    DFA_DEVICE unsigned ds() const { return shared.base + Keys::kDsAt; }
    // Of a pair, of the m-th tile: the places of its ds, own and the other's, with p between the
    // first of each, and their barriers.
    static DFA_DEVICE unsigned place(unsigned m) { return m % kDsPlaces; }
    static DFA_DEVICE unsigned phase_of(unsigned m) { return m / kDsPlaces % 2; }
    DFA_DEVICE unsigned ds(unsigned m) const { return ds() + place(m) * 4 * Keys::kDsBytes; }
    DFA_DEVICE unsigned others_ds(unsigned m) const {
      return ds() + (3 + 2 * place(m)) * Keys::kDsBytes;
    }
    DFA_DEVICE unsigned ds_there(unsigned m) const { return shared.ds_there(place(m)); }
    DFA_DEVICE unsigned sent_read(unsigned m) const { return shared.sent_read(place(m)); }
    // A thread's four values of a fragment of p: the same lane of either warpgroup has them.
    DFA_DEVICE unsigned p() const {
      return shared.base + kPAt + ptx::thread_index() % kGroupThreads * 16;
    }
    // What a thread is told of draws, of a tile and the next one in turn.
    DFA_DEVICE unsigned told(unsigned thread, unsigned turn) const {
      return shared.base + Keys::kDrawsAt + (turn * kGroupThreads + thread % kGroupThreads) * 4;
    }
  };
  static constexpr int kFragmentBytes = kGroupThreads * 16;

  // Before the first addition to a tile, and behind the last, as every warp says.
  static DFA_DEVICE void await_semaphore(const Step& at) {
    if constexpr (Dq::kSerialized) ptx::wait(at.shared.acquired(), at.phase);
  }
  static DFA_DEVICE void release_semaphore(Step& at) {
    if constexpr (Dq::kSerialized) {
      __syncwarp();
      if (ptx::thread_index() % 32 == 0) ptx::arrive(at.shared.added());
      at.phase ^= 1;
    }
  }

  // Shares of dq, one after the other: the first is under way.
  template <int kFirst, int kEnd>
  static DFA_DEVICE void add_shares(Step& at, typename Dq::Share& share) {
    await_semaphore(at);
#pragma unroll
    for (int place = kFirst; place < kEnd; ++place) {
      if (place > kFirst) {
        Keys::queue_dq(share, at.shared.base, at.ds(), place);
        ptx::wait_products<0>();
        ptx::pin(share);
      }
      Dq::add(at.args, {Keys::again(at.shared, at.work).seq, at.walk.head}, at.walk.tile,
              at.work.key, place, share);
    }
    release_semaphore(at);
  }

  // Of a pair. A block has half of the shares of a tile's dq, or, as an odd number of them is dealt
  // out in turn, every second, the first of which changes from tile to tile: of this block's the
  // warpgroup of dk has the first, that of dv the second, if there is one.
  static constexpr bool kHalves = kConfig.sm90_halves_dq();
  template <int kWhich>
  static DFA_DEVICE int place_of(const Walk& walk) {
    if constexpr (kHalves) return Keys::rank() * Keys::kOthersPanels + kWhich;
    return (walk.tile + Keys::rank()) % 2 + 2 * kWhich;
  }
  template <int kWhich>
  static DFA_DEVICE bool has_place(int place) {
    constexpr bool kAlways = kWhich == 0 && Dq::kPlaces > 1;
    return kHalves ? kWhich < Keys::kOthersPanels : kAlways || place < Dq::kPlaces;
  }
  // In what is there of the other's k.
  template <int kWhich>
  static DFA_DEVICE int others_place(int place) {
    return kHalves ? kWhich : place;
  }

  // Each warp sends its rows of ds and expects as many, where the other block has read what was
  // there before.
  static DFA_DEVICE void wait_sent_read(const Step& at) {
    ptx::wait(at.sent_read(at.n()), Step::phase_of(at.n()) ^ 1);
  }
  static DFA_DEVICE void send_ds(const Step& at) {
    __syncwarp();
    if (!ptx::elect()) return;
    ptx::arrive_expecting(at.ds_there(at.n()), Keys::kWarpBytes);
    const int rows = Keys::warp_row() * kPanelRowBytes;
    Keys::send_rows(Keys::rank(), at.ds(at.n()) + rows, at.others_ds(at.n()) + rows,
                    at.ds_there(at.n()));
  }
  // What the other block sent of a tile has been read, or is not needed.
  static DFA_DEVICE void give_others_ds_back(const Step& at, unsigned m) {
    __syncwarp();
    if (ptx::thread_index() % 32 == 0) {
      ptx::arrive_there(ptx::of_pair(at.sent_read(m), 1 - Keys::rank()));
    }
  }

  // Queues a share of the m-th tile's dq, of the keys of both. Either block's ds is there: all
  // warps told theirs at one barrier.
  static DFA_DEVICE void queue_share_of_both(Step& at, unsigned m, int place, int others_place,
                                             typename Dq::Share& share) {
    ptx::wait(at.ds_there(m), Step::phase_of(m));
    ptx::pin(share);
    ptx::fence_products();
    Keys::template multiply_dq<0>(share, Keys::dq_left(at.shared.base, place),
                                  Keys::dq_right(at.ds(m), place));
    Keys::template multiply_dq<1>(share,
                                  Keys::dq_left(at.shared.base + Keys::kOthersKAt, others_place),
                                  Keys::dq_right(at.others_ds(m), place));
    ptx::commit_products();
  }
  // Of a tile that has no share for this warpgroup. Where none of the block has any, the other's ds
  // may not have come yet.
  template <int kWhich>
  static DFA_DEVICE void give_unused_ds_back(const Step& at, unsigned m) {
    if constexpr (kWhich == 0) ptx::wait(at.ds_there(m), Step::phase_of(m));
    give_others_ds_back(at, m);
  }
  // `next`: scores that were queued before.
  static DFA_DEVICE void add_share_of_both(Step& at, unsigned m, const Walk& walk, int place,
                                           int others_place, Scores& next) {
    typename Dq::Share share;
    queue_share_of_both(at, m, place, others_place, share);
    ptx::wait_products<0>();
    ptx::pin(next);
    ptx::pin(share);
    give_others_ds_back(at, m);
    await_semaphore(at);
    Dq::add(at.args, {Keys::again(at.shared, at.work).seq, walk.head}, walk.tile, at.work.key,
            place, share);
    release_semaphore(at);
  }
  // This warpgroup's, if there is one. The semaphore is waited for in any case: a warp that says
  // that it has added to a tile's dq says so of no other.
  template <int kWhich>
  static DFA_DEVICE void add_own_share(Step& at, unsigned m, const Walk& walk, Scores& next) {
    const int place = place_of<kWhich>(walk);
    if (has_place<kWhich>(place)) {
      add_share_of_both(at, m, walk, place, others_place<kWhich>(place), next);
    } else {
      ptx::wait_products<0>();
      ptx::pin(next);
      give_unused_ds_back<kWhich>(at, m);
      await_semaphore(at);
      release_semaphore(at);
    }
  }

  // Where registers last for a share beside the next p or ds it is added a step after it was made,
  // beside that step's products, so that neither p nor ds waits behind additions. Serialized sums
  // are not: a semaphore would be held a step longer.
  static constexpr bool kAddsLate =
      kPaired && !Dq::kSerialized && kConfig.head_dim <= 192 && kConfig.value_dim <= 192;
  struct Made {
    typename Dq::Share share;
    bool waits = false;  // to be added

    // NVRTC 12.8 serialises products (C7515) whose sums have no value where the first step has no
    // share. Later releases do not, and make no code of this.
    DFA_DEVICE Made() {
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1209
      if constexpr (kAddsLate) Keys::clear(share);
#endif
    }
  };
  // As add_own_share, but for the addition.
  template <int kWhich>
  static DFA_DEVICE void make_own_share(Step& at, unsigned m, const Walk& walk,
                                        typename Dq::Share& share, Scores& next) {
    const int place = place_of<kWhich>(walk);
    if (has_place<kWhich>(place)) {
      queue_share_of_both(at, m, place, others_place<kWhich>(place), share);
    } else if constexpr (kWhich == 0) {
      ptx::wait(at.ds_there(m), Step::phase_of(m));
    }
    ptx::wait_products<0>();
    ptx::pin(next);
    ptx::pin(share);
    give_others_ds_back(at, m);
  }
  // walk: the tile whose share was made.
  template <int kWhich>
  static DFA_DEVICE void add_late(const Step& at, const Walk& walk, const Made& made) {
    if (!kAddsLate || !made.waits) return;
    const int place = place_of<kWhich>(walk);
    if (has_place<kWhich>(place)) {
      Dq::add(at.args, {Keys::again(at.shared, at.work).seq, walk.head}, walk.tile, at.work.key,
              place, made.share);
    }
  }

  static DFA_DEVICE void wait_keys(const Step& at, unsigned barrier) {
    if constexpr (Keys::kPersistent) {
      ptx::wait(barrier, at.keys_phase());
    } else {
      ptx::wait(barrier, 0);
    }
  }
  // It comes with v or, where pairs stay, by itself.
  static DFA_DEVICE void wait_others_k(const Step& at) {
    wait_keys(at, Keys::kPersistent ? at.shared.others_k_full() : at.shared.v_full());
  }

  // Of the tile before this step's.
  template <int kWhich>
  static DFA_DEVICE void share_before(Step& at, Made& made, Scores& next) {
    made.waits = at.owes_dq();
    if (made.waits) {
      if constexpr (kAddsLate) {
        make_own_share<kWhich>(at, at.n() - 1, at.walk.before(), made.share, next);
      } else {
        add_own_share<kWhich>(at, at.n() - 1, at.walk.before(), next);
      }
    } else {
      if constexpr (Keys::kPersistent) wait_others_k(at);  // before the first share
      ptx::wait_products<0>();
      ptx::pin(next);
    }
  }
  // Behind the last step.
  template <int kWhich>
  static DFA_DEVICE void last_share(Step& at, Made& made, Scores& next) {
    add_late<kWhich>(at, at.walk.before(), made);
    add_own_share<kWhich>(at, at.n() - 1, at.walk, next);
  }

  // The warpgroup of dv.

  // Which weights a dropout keeps, drawn a step ahead, while the other makes ds. Of each two warps
  // either draws half, for both.
  struct Draws {
    unsigned own = 0, turn = 0;
    DFA_DEVICE void draw(const Step& at, const Walk& walk) {
      if constexpr (kConfig.dropout) {
        const unsigned thread = ptx::thread_index();
        const Dropout dropout(at.args, Keys::again(at.shared, at.work).seq.batch, walk.head);
        unsigned others;
        dropout.draw_for_two(at.args, at.work.key + Keys::warp_row(), walk.tile * kConfig.block_q,
                             thread / 32 % 2 != 0, own, others);
        ptx::store_shared(at.told(thread ^ 32, turn), others);
      }
    }
    // Behind a barrier.
    DFA_DEVICE unsigned kept(const Step& at) {
      if constexpr (!kConfig.dropout) return 0;
      const unsigned told = ptx::load_shared(at.told(ptx::thread_index(), turn));
      turn ^= 1;
      return own | told;
    }
  };
  struct OfDv {
    float dv[Keys::kValues][4];
    Scores p;   // of the tile under way, first its scores
    Pairs lse;  // its
    Made made;
    typename Keys::template Held<kConfig.sm90_held_k()> k;
    Draws draws;
    typename Keys::Biases biases;  // of the tile under way
  };

  // A thread's first pair of the tile at `walk`.
  struct FirstPair {
    int query, key;
  };
  static DFA_DEVICE FirstPair first_pair(const Step& at, const Walk& walk) {
    const int lane = static_cast<int>(Keys::lane());
    return {walk.tile * kConfig.block_q + lane % 4 * 2, at.work.key + Keys::warp_row() + lane / 4};
  }
  static DFA_DEVICE void load_biases(const Step& at, OfDv& of, const Walk& walk) {
    if constexpr (kConfig.bias) {
      const FirstPair first = first_pair(at, walk);
      of.biases.load(at.args, Keys::again(at.shared, at.work).seq, walk.head, first.query,
                     first.key);
    }
  }
  // What the tile at `walk` takes beside its scores.
  static DFA_DEVICE void look_ahead(const Step& at, OfDv& of, const Walk& walk) {
    if constexpr (kBiasesAhead) load_biases(at, of, walk);
    of.draws.draw(at, walk);
  }

  static DFA_DEVICE void tell_p(const Step& at, const Scores& p) {
    const unsigned to = at.p();
#pragma unroll
    for (int n = 0; n < Keys::kQueries; ++n) ptx::store_shared_4(to + n * kFragmentBytes, p[n]);
    ptx::arrive_warps(kPIsThere, kThreads);
  }

  static DFA_DEVICE void make_p_of_logits(const Step& at, OfDv& of, Operand& p) {
    const LogitArgs& logits = at.args.logits;
    if constexpr (kConfig.softcap) cap_scores(of.p, logits.inverse_softcap);
    const auto seq = Keys::again(at.shared, at.work).seq;
    const int query = at.walk.tile * kConfig.block_q;
    Keys::hide(of.p, at.args, seq, query, at.work.key);
    typename Keys::Alibi alibi;
    if constexpr (kConfig.alibi) {
      alibi = Keys::alibi_of(at.args, seq, at.walk.head, query, at.work.key);
    }
    if constexpr (!kBiasesAhead) load_biases(at, of, at.walk);
    of.biases.widen(at.args);
    typename Keys::Text text;
    float factor = kConfig.softcap ? logits.softcap : at.args.scale_log2;
    if constexpr (kConfig.text) {
      const FirstPair first = first_pair(at, at.walk);
      text = {at.args, seq, at.walk.head, first.query, first.key};
      factor = text.kToExponents;
    }
    const auto lse_of = [&](int n) { return of.lse[n]; };
    Keys::weigh_logits(of.p, p, factor, lse_of, alibi, of.biases, text, of.draws.kept(at));
    tell_p(at, of.p);
  }

  static DFA_DEVICE void queue_s(Step& at, OfDv& of) {
    at.shared.q.wait_full();
    Keys::template queue_scores<kConfig.head_dim>(of.p, of.k, at.shared.base, at.shared.q.tile());
    Keys::load_pairs(of.lse, at.shared.lse());
  }

  // One tile of queries. kMore: the next one's scores are queued meanwhile.
  template <bool kMore>
  static DFA_DEVICE void step_of_dv(Step& at, OfDv& of) {
    at.place();
    Operand p;
    if constexpr (kMakesLogits) {
      make_p_of_logits(at, of, p);
    } else {
      Keys::hide(of.p, at.args, Keys::again(at.shared, at.work).seq, at.walk.tile * kConfig.block_q,
                 at.work.key);
      Keys::exp2(of.p, at.args.scale_log2, of.lse);
      tell_p(at, of.p);
      Keys::round(p, of.p);
    }
    at.shared.q.release();
    at.shared.q.next();
    at.shared.d_o.wait_full();
    Keys::template queue_gradient<true>(of.dv, p, at.shared.d_o.tile());
    if constexpr (kMore) {
      queue_s(at, of);
      if constexpr (kMakesLogits) {
        Walk next = at.walk;
        next.next();
        look_ahead(at, of, next);
      }
    }
    add_late<1>(at, at.walk.before().before(), of.made);

    if constexpr (!kPaired) ptx::sync_warps(kDsIsThere, kThreads);
    ptx::wait_products<kMore ? 1 : 0>();
    ptx::pin(of.dv);
    ptx::pin(p);
    at.shared.d_o.release();
    at.shared.d_o.next();
    if constexpr (kPaired) {
      share_before<1>(at, of.made, of.p);
      ptx::sync_warps(kDsIsThere, kThreads);
      at.end_step();
    } else {
      typename Dq::Share share;
      if constexpr (kSharesOfDv > 0) Keys::queue_dq(share, at.shared.base, at.ds(), 0);
      ptx::wait_products<0>();
      ptx::pin(of.p);
      if constexpr (kSharesOfDv > 0) ptx::pin(share);
      add_shares<0, kSharesOfDv>(at, share);
    }
  }

  static DFA_DEVICE void compute_dv(const Sm90BackwardArgs& a, const Shared& shared) {
    const WorkTile pair = Keys::cluster_work_tile(a.args, shared), work = Keys::own_work_tile(pair);
    Step at{a.args, work, Walk::of(a.args, pair), shared, 0};
    while (!Keys::kPersistent || at.next_work_tile()) {
      OfDv of;
      Keys::clear(of.dv);
      if (at.walk.any()) {
        wait_keys(at, shared.k_full());
        of.k.load(shared.base, Keys::warp_row());
        if constexpr (kPaired && !Keys::kPersistent) wait_others_k(at);
        at.place();
        queue_s(at, of);
        look_ahead(at, of, at.walk);
        ptx::wait_products<0>();
        ptx::pin(of.p);
        if constexpr (kConfig.dropout) ptx::sync_warps(kDrawsAreThere, kGroupThreads);
#pragma unroll 1
        for (; !at.walk.is_last(); at.walk.next()) step_of_dv<true>(at, of);
        step_of_dv<false>(at, of);
        if constexpr (kPaired) last_share<1>(at, of.made, of.p);
      } else if constexpr (Keys::kPersistent) {
        wait_others_k(at);  // so that nobody gives back keys that have not been asked for
      }
      at.tell_added();
      ptx::sync_warps(1, kThreads);  // all have read k and v
      if constexpr (Keys::kPersistent) at.give_back(shared.k_empty());
      Keys::store_gradient(a.args, a.dv, shared.base + Keys::kVAt, 0, at.stored_work_tile(), of.dv,
                           Dropout::factor(a.args));
      typename Step::Rounded rounded;
      at.begin_rounding(rounded);
      ptx::wait_stores_read();
      if constexpr (!Keys::kPersistent) break;
      at.give_back(shared.v_empty());
      at.end_rounding(rounded);
      at.end_work_tile();
    }
  }

  // The warpgroup of dk.

  struct OfDk {
    float dk[Keys::kDims][4];
    Scores dp;  // of the tile under way
    Made made;
    typename Keys::template Held<kConfig.sm90_held_v()> v;
    typename Dropout::Factor dropout;
  };

  static DFA_DEVICE void make_ds(const Step& at, OfDk& of) {
    Pairs delta;
    Keys::load_pairs(delta, at.shared.delta());
    ptx::sync_warps(kPIsThere, kThreads);
    const unsigned from = at.p();
#pragma unroll
    for (int n = 0; n < Keys::kQueries; ++n) {
      const float4 p = ptx::load_shared_4(from + n * kFragmentBytes);
      of.dp[n][0] = of.dropout.score_gradient(p.x, of.dp[n][0], delta[n].x);
      of.dp[n][1] = of.dropout.score_gradient(p.y, of.dp[n][1], delta[n].y);
      of.dp[n][2] = of.dropout.score_gradient(p.z, of.dp[n][2], delta[n].x);
      of.dp[n][3] = of.dropout.score_gradient(p.w, of.dp[n][3], delta[n].y);
    }
  }

  // ds to the gradient of the bias, which is 0 before, where it is wanted here: what a softcap
  // leaves of ds is not its gradient.
  static constexpr bool kAddsBiases = kConfig.bias && !kConfig.softcap;
  static DFA_DEVICE void add_bias_gradient(const Step& at, const Scores& ds) {
    if (at.args.logits.bias.gradients == nullptr) return;
    const auto seq = Keys::again(at.shared, at.work).seq;
    const FirstPair first = first_pair(at, at.walk);
    Keys::Biases::add_gradient(at.args, seq, at.walk.head, first.query, first.key, ds);
  }

  static DFA_DEVICE void queue_dp(Step& at, OfDk& of) {
    at.shared.d_o.wait_full();
    Keys::template queue_scores<kConfig.value_dim>(of.dp, of.v, at.shared.base + Keys::kVAt,
                                                   at.shared.d_o.tile());
  }

  template <bool kMore>
  static DFA_DEVICE void step_of_dk(Step& at, OfDk& of) {
    at.place();
    Operand ds;
    make_ds(at, of);
    Keys::round(ds, of.dp);
    if constexpr (kPaired) wait_sent_read(at);
    store_rows<Keys::kBlockK>(at.ds(at.n()), Keys::warp_row(), ds);
    ptx::fence_async();
    if constexpr (kPaired) send_ds(at);
    ptx::arrive_warps(kDsIsThere, kThreads);
    at.shared.d_o.release();
    at.shared.d_o.next();
    at.shared.q.wait_full();
    Keys::template queue_gradient<true>(of.dk, ds, at.shared.q.tile());
    if constexpr (kAddsBiases) add_bias_gradient(at, of.dp);
    if constexpr (kMore) queue_dp(at, of);
    add_late<0>(at, at.walk.before().before(), of.made);

    ptx::wait_products<kMore ? 1 : 0>();
    ptx::pin(of.dk);
    ptx::pin(ds);
    at.shared.q.release();
    at.shared.q.next();
    if constexpr (!kPaired) ptx::sync_warps(kDsIsOurs, kGroupThreads);
    if constexpr (kPaired) {
      share_before<0>(at, of.made, of.dp);
      at.end_step();
    } else {
      typename Dq::Share share;
      Keys::queue_dq(share, at.shared.base, at.ds(), kSharesOfDv);
      ptx::wait_products<0>();
      ptx::pin(of.dp);
      ptx::pin(share);
      add_shares<kSharesOfDv, Dq::kPlaces>(at, share);
    }
  }

  static DFA_DEVICE void compute_dk(const Sm90BackwardArgs& a, const Shared& shared) {
    const WorkTile pair = Keys::cluster_work_tile(a.args, shared), work = Keys::own_work_tile(pair);
    Step at{a.args, work, Walk::of(a.args, pair), shared, 0};
    while (!Keys::kPersistent || at.next_work_tile()) {
      OfDk of;
      of.dropout = Dropout::Factor::of(a.args);
      Keys::clear(of.dk);
      if (at.walk.any()) {
        wait_keys(at, shared.v_full());
        of.v.load(shared.base + Keys::kVAt, Keys::warp_row());
        at.place();
        queue_dp(at, of);
        wait_keys(at, shared.k_full());
        ptx::wait_products<0>();
        ptx::pin(of.dp);
#pragma unroll 1
        for (; !at.walk.is_last(); at.walk.next()) step_of_dk<true>(at, of);
        step_of_dk<false>(at, of);
        if constexpr (kPaired) last_share<0>(at, of.made, of.dp);
      } else if constexpr (Keys::kPersistent) {
        wait_others_k(at);
      }
      at.tell_added();
      ptx::sync_warps(1, kThreads);  // all have read k and v
      if constexpr (Keys::kPersistent) at.give_back(shared.v_empty());
      Keys::store_gradient(a.args, a.dk, shared.base, 0, at.stored_work_tile(), of.dk,
                           a.args.scale);
      typename Step::Rounded rounded;
      at.begin_rounding(rounded);
      ptx::wait_stores_read();
      if constexpr (!Keys::kPersistent) break;
      at.give_back(shared.k_empty());
      at.end_rounding(rounded);
      at.end_work_tile();
    }
  }
};

// Threads of the block, or of both.
template <bool kPaired>
DFA_DEVICE void sync_all() {
  if constexpr (kPaired) {
    ptx::sync_cluster();
  } else {
    __syncthreads();
  }
}

template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_wide_backward(const __grid_constant__ Sm90BackwardArgs a) {
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
  sync_all<Keys::kPaired>();
  ptx::griddepcontrol_wait();
  const int group = __shfl_sync(ptx::kWholeWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    Keys::serve(a, shared);
  } else {
    ptx::setmaxnreg_inc<Keys::kTaken>();
    if (group == 1) {
      Sm90WideBackward<kConfig>::compute_dv(a, shared);
    } else {
      Sm90WideBackward<kConfig>::compute_dk(a, shared);
    }
  }
  if constexpr (Keys::kPaired) ptx::sync_cluster();  // neither ends while the other sends to it
}

}  // namespace dfa
