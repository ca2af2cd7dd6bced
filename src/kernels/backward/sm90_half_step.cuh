#pragma once

#include "kernels/backward/sm90_keys.cuh"

namespace dfa {

// What a warpgroup with 64 keys does with 64 queries, where it has both of their gradients: p and
// ds, and their products for dv and dk. A tile has one or two such halves; the scores of the first
// have been queued in the step before. Of pairs of blocks those that make dq empty the
// buffers of ds, and are told of a full one; else warpgroups meet when all of ds is there.
template <BackwardConfig kConfig>
struct Sm90HalfStep {
  using Keys = Sm90Keys<kConfig>;
  using Operand = typename Keys::Operand;
  using Pairs = typename Keys::Pairs;
  using Scores = typename Keys::Scores;
  using Seqlen = typename Keys::Seqlen;
  static constexpr int kHalf = Keys::kHalf;
  static constexpr int kHalves = Keys::kHalves;
  static constexpr bool kTellsDs = kConfig.cluster > 1;
  // Where registers last for reading delta ahead of dv's products, which leave little of what
  // shared memory gives in a cycle: reads behind them take hundreds of cycles.
  static constexpr bool kDeltaEarly = kHalves == 2 && kConfig.value_dim <= 64;

  static constexpr int kHeldK = kConfig.sm90_held_k(), kHeldV = kConfig.sm90_held_v();
  static constexpr bool kHeldWhole = kHeldK == kConfig.head_dim && kHeldV == kConfig.value_dim;

  struct Sums {
    typename Keys::template Held<kHeldK> k;
    typename Keys::template Held<kHeldV> v;
    float dk[Keys::kDims][4], dv[Keys::kValues][4];
    Scores p[kHalves];  // of the tile under way, first its scores
    Pairs lse;          // of its first half, read a step ahead
    TileRange seeing;   // queries that see all of the warpgroup's keys, where told
    unsigned kept = 0;  // of the tile under way, where draws are made ahead
  };

  // Where registers last for telling by two comparisons whether a mask hides anything.
  static constexpr bool kSeeingKept = kHalves == 1 || kConfig.value_dim <= 64;
  static DFA_DEVICE void keep_seeing(Sums& sums, const KernelArgs& args, const Seqlen& seq,
                                     int key) {
    if constexpr (kSeeingKept)
      sums.seeing = seeing_all(MaskOf<kConfig>::of(args, seq), key, kGroupRows);
  }
  static DFA_DEVICE void hide(Scores& scores, const Sums& sums, const KernelArgs& args,
                              const typename Keys::Shared& shared, const Seqlen& seq, int query,
                              int key) {
    if constexpr (!kSeeingKept) {
      Keys::hide(scores, args, seq, query, key);
    } else if (query < sums.seeing.begin || query + kHalf > sums.seeing.end) {
      const MaskOf<kConfig> mask = MaskOf<kConfig>::of(args, Keys::again(shared, {seq}).seq);
      Keys::hide_some(scores, args, mask, query, key);
    }
  }

  // When k, or v, is there, before the first product with it. Where a thread sends ds the index is
  // read anew, once a work tile: kept, it spills.
  static DFA_DEVICE int first_row(int group) {
    const int of_warp =
        kConfig.sm90_sends_ds() ? Keys::warp_row_of(ptx::thread_index()) : Keys::warp_row();
    return group * kGroupRows + of_warp;
  }
  static DFA_DEVICE void hold_k(Sums& sums, unsigned base, int group) {
    sums.k.template load<Keys::kKeyColumns>(base, first_row(group));
  }
  static DFA_DEVICE void hold_v(Sums& sums, unsigned base, int group) {
    sums.v.load(base + Keys::kVAt, first_row(group));
  }

  // k q^T of 64 queries into s, and v do^T into dp.
  static DFA_DEVICE void queue_s(Scores& s, Sums& sums, unsigned base, int group, unsigned q) {
    const unsigned rows = base + group * panel_bytes(kGroupRows);
    Keys::template queue_scores<kConfig.head_dim, Keys::kKeyColumns>(s, sums.k, rows, q);
  }
  static DFA_DEVICE void queue_dp(Scores& dp, Sums& sums, unsigned base, int group, unsigned d_o) {
    const unsigned rows = base + Keys::kVAt + group * panel_bytes(kGroupRows);
    Keys::template queue_scores<kConfig.value_dim>(dp, sums.v, rows, d_o);
  }

  // Of a text, which makes p and its derivative for ds at once. Where registers do not last for it
  // beside dp, no product of the warpgroup's runs meanwhile: the other one's do. Then lse is read
  // here, too, a fragment ahead.
  static constexpr bool kTextFirst = kConfig.text && kHalves == 1;
  template <int kAt, typename Tile>
  static DFA_DEVICE void weigh_text(const KernelArgs& args, const Seqlen& seq, int head, int query,
                                    int key, const Tile& at, Sums& sums, Operand& p) {
    using Text = typename Keys::Text;
    const int lane = static_cast<int>(Keys::lane());
    const Text text(args, seq, head, query + kAt * kHalf + lane % 4 * 2,
                    key + Keys::warp_row() + lane / 4);
    const unsigned from = at.lse() + lane % 4 * 8;
    float2 ahead = kTextFirst ? ptx::load_shared_2(from) : float2{};
    const auto lse_of = [&](int n) {
      if constexpr (!kTextFirst) return sums.lse[n];
      const float2 lse = ahead;
      if (n + 1 < Keys::kQueries) ahead = ptx::load_shared_2(from + (n + 1) * 32);
      return lse;
    };
    Keys::weigh_logits(sums.p[kAt], p, Text::kToExponents, lse_of, {}, {}, text, 0);
  }

  // p of a part of the queries, and its products for dv: those of the first start while the second
  // is weighed. A text has made it.
  static constexpr int kParts = kHalves == 1 && !kConfig.text ? 2 : 1;
  template <int kAt, int kPart>
  static DFA_DEVICE void make_p(const KernelArgs& args, Sums& sums, Operand& p, unsigned d_o,
                                unsigned delta, unsigned kept) {
    constexpr int kFrom = kPart * Keys::kSteps / kParts, kTo = kFrom + Keys::kSteps / kParts;
    if constexpr (!kConfig.text) {
      Keys::template exp2<kFrom, kTo>(sums.p[kAt], args.scale_log2, sums.lse);
    }
    if constexpr (kDeltaEarly) Keys::load_pairs(sums.lse, delta);  // in the place of lse
    if constexpr (kConfig.dropout) {
      Keys::template mark_dropped<kFrom, kTo>(sums.p[kAt], kept);
      Keys::template round_kept<kFrom, kTo>(p, sums.p[kAt]);
    } else if constexpr (!kConfig.text) {
      Keys::template round<kFrom, kTo>(p, sums.p[kAt]);
    }
    Keys::template queue_gradient<kAt == 0 && kPart == 0, kFrom, kTo>(sums.dv, p, d_o);
  }

  // Waits for dp; kBehind groups of products behind it stay under way. `early`: delta, where read.
  template <int kBehind>
  static DFA_DEVICE void make_ds(const KernelArgs& args, Scores& dp, const Scores& p,
                                 unsigned delta, const Pairs& early) {
    ptx::wait_products<kBehind>();
    ptx::pin(dp);
    const auto factor = Keys::Factor::of(args);
    if constexpr (kDeltaEarly) {
      Keys::differentiate(
          dp, p, [&](int n) { return early[n]; }, factor);
    } else {
      const unsigned from = delta + Keys::thread() % 4 * 8;
      Keys::differentiate(
          dp, p, [&](int n) { return ptx::load_shared_2(from + n * 32); }, factor);
    }
  }

  // Which weights a dropout keeps, of half kAt, while products run. Of each two warps either draws
  // for half of the queries, for both; a half has a place of its own for what they tell each other,
  // so that of two one meeting each is enough.
  static constexpr unsigned kDrawing = 8;  // named barriers from here on
  static DFA_DEVICE void meet_other(int group) {
    ptx::sync_warps(kDrawing + group * 2 + Keys::thread() % kGroupThreads / 64, 64);
  }
  template <int kAt>
  static DFA_DEVICE unsigned draw(const KernelArgs& args, const Seqlen& seq, int head, int query,
                                  int key, unsigned base, int group) {
    if constexpr (!kConfig.dropout) return 0;
    const unsigned thread = Keys::thread() % kGroupThreads;
    const unsigned places = base + Keys::kDrawsAt + (kAt * 2 + group) * kGroupThreads * 4;
    const DropoutOf<kConfig> dropout(args, seq.batch, head);
    unsigned own, others;
    dropout.draw_for_two(args, key + Keys::warp_row(), query, thread / 32 % 2 != 0, own, others);
    ptx::store_shared(places + (thread ^ 32) * 4, others);
    meet_other(group);
    return own | ptx::load_shared(places + thread * 4);
  }

  // Where registers last for draws only while there is no dp: of the tile at `walk`, or behind it.
  static constexpr bool kDrawsAhead = kConfig.dropout && kHalves == 1;
  template <bool kBehind, typename Walk, typename Tile>
  static DFA_DEVICE void draw_ahead(const KernelArgs& args, const Seqlen& seq, Walk walk, int key,
                                    const Tile& at, int group, Sums& sums) {
    if constexpr (kDrawsAhead) {
      if constexpr (kBehind) walk.next();
      sums.kept = draw<0>(args, seq, walk.head, walk.tile * kHalf, key, at.base, group);
      meet_other(group);  // either has read
    }
  }

  // Half kAt of the tile `at`, whose first query and whose group's first key are given; ds goes to
  // the buffer `ds`.
  template <int kAt, typename Tile>
  static DFA_DEVICE void run(const KernelArgs& args, const Seqlen& seq, int head, int query,
                             int key, const Tile& at, unsigned ds, int group, Sums& sums,
                             Operand (&p)[kHalves], Operand (&ds_rounded)[kHalves]) {
    constexpr bool kNext = kAt + 1 < kHalves;
    const unsigned q = at.q.tile() + kAt * panel_bytes(kHalf);
    const unsigned d_o = at.d_o.tile() + kAt * panel_bytes(kHalf);
    Scores dp;
    if constexpr (!kTextFirst) queue_dp(dp, sums, at.base, group, d_o);
    if constexpr (kNext) queue_s(sums.p[kAt + 1], sums, at.base, group, q + panel_bytes(kHalf));
    hide(sums.p[kAt], sums, args, at, seq, query + kAt * kHalf, key);
    if constexpr (kConfig.blocks) at.hide_unlisted(sums.p[kAt], args, kAt * kHalf, key);
    const unsigned delta = at.delta() + kAt * kHalf * 4;
    unsigned kept = sums.kept;
    if constexpr (!kDrawsAhead) {
      kept = draw<kAt>(args, seq, head, query + kAt * kHalf, key, at.base, group);
    }
    if constexpr (kConfig.text) weigh_text<kAt>(args, seq, head, query, key, at, sums, p[kAt]);
    if constexpr (kTextFirst) queue_dp(dp, sums, at.base, group, d_o);
    make_p<kAt, 0>(args, sums, p[kAt], d_o, delta, kept);
    if constexpr (kParts > 1) make_p<kAt, 1>(args, sums, p[kAt], d_o, delta, kept);

    make_ds<kNext ? 2 : 1>(args, dp, sums.p[kAt], delta, sums.lse);
    Keys::round(ds_rounded[kAt], dp);
    if constexpr (kTellsDs) at.wait_ds_empty(kAt);
    store_rows<Keys::kBlockK>(ds + kAt * panel_bytes(Keys::kBlockK),
                              group * kGroupRows + Keys::warp_row(), ds_rounded[kAt], Keys::lane());
    Keys::template queue_gradient<kAt == 0>(sums.dk, ds_rounded[kAt], q);
    ptx::fence_async();  // behind the products' start: it waits for the stores
    if constexpr (kTellsDs) at.tell_ds_full(kAt, group);
    if constexpr (kNext) {
      Keys::load_pairs(sums.lse, at.lse() + (kAt + 1) * kHalf * 4);
      ptx::wait_products<2>();
      ptx::pin(sums.p[kAt + 1]);
    }
  }
};

}  // namespace dfa
