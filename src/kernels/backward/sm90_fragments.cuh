#pragma once

#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/tile/panel.h"
#include "kernels/tile/panel_rows.cuh"
#include "kernels/variant/bias.cuh"
#include "kernels/variant/dropout.cuh"
#include "kernels/variant/exponent_logits.cuh"
#include "kernels/variant/fragment_text.cuh"
#include "spec/backward_config.h"

// What a warpgroup of Hopper's backward does with 64 keys and 64 queries, in fragments as its
// products have them: scores, their weights, their gradients.
namespace dfa {

// Columns that a panel of k has. Of 96, as pairs make dq of them, either warpgroup has one half, of
// 64 queries as rows: transposed, 64 columns as rows of a product, a quarter of dq's products would
// be of nothing. With serialized sums under a mask that is 0.95 of the speed at 1024 keys (0019).
template <BackwardConfig kConfig>
inline constexpr int kSm90KeyColumns =
    kConfig.head_dim == 96 && kConfig.cluster == 2 && !kConfig.sm90_is_wide() &&
            !(kConfig.dq_serialized() && kConfig.masked)
        ? 48
        : kPanelColumns;

template <BackwardConfig kConfig>
struct Sm90Fragments {
  static constexpr DType kElement = kConfig.element;
  static constexpr int kBlockQ = kConfig.block_q;
  static constexpr int kBlockK = kConfig.block_k;
  static constexpr int kHalf = 64;            // queries whose scores are one product
  static constexpr int kQueries = kHalf / 8;  // fragments
  static constexpr int kSteps = kHalf / 16;   // of a product

  using Scores = float[kQueries][4];
  using Operand = unsigned[kSteps][4];
  using Pairs = float2[kQueries];  // a lane's values of lse or delta: two queries of a fragment

  template <int kFragments>
  static DFA_DEVICE void clear(float (&sum)[kFragments][4]) {
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] = 0;
    }
  }

  // Of a warp's 16 keys the first columns of k or v, where products take them from registers.
  template <int kColumns, typename = void>
  struct Held {
    unsigned columns[kColumns / 16][4];
    // first: the warp's first key in the tile, whose panels have so many columns.
    template <int kOfPanel = kPanelColumns>
    DFA_DEVICE void load(unsigned tile, int first) {
      load_rows<kBlockK, kOfPanel>(tile, first, columns);
    }
  };
  template <typename Unused>
  struct Held<0, Unused> {
    template <int kOfPanel = kPanelColumns>
    DFA_DEVICE void load(unsigned, int) {}
  };

  // 64 rows of keys, from `rows` on, in panels of so many columns, times a tile of queries.
  template <int kColumns, int kOfPanel = kPanelColumns>
  static DFA_DEVICE void queue_scores(Scores& scores, unsigned rows, unsigned queries) {
    const Descriptor left = k_in_columns(rows), right = k_in_columns(queries);
    ptx::pin(scores);
    ptx::fence_products();
    ptx::multiply_shared<kElement, 0>(scores, left.bits(), right.bits());
#pragma unroll
    for (int step = 1; step < kColumns / 16; ++step) {
      ptx::multiply_shared<kElement, 1>(scores,
                                        left.moved(column_step<kBlockK, kOfPanel>(step)).bits(),
                                        right.moved(column_step<kBlockQ>(step)).bits());
    }
    ptx::commit_products();
  }

  template <int kColumns, int kOfPanel = kPanelColumns>
  static DFA_DEVICE void queue_scores(Scores& scores, Held<0>&, unsigned rows, unsigned queries) {
    queue_scores<kColumns, kOfPanel>(scores, rows, queries);
  }
  // The same with the first columns of the warpgroup's keys in registers.
  template <int kColumns, int kOfPanel = kPanelColumns, int kHeldColumns>
  static DFA_DEVICE void queue_scores(Scores& scores, Held<kHeldColumns>& held, unsigned rows,
                                      unsigned queries) {
    const Descriptor left = k_in_columns(rows), right = k_in_columns(queries);
    ptx::pin(scores);
    ptx::pin(held.columns);
    ptx::fence_products();
    ptx::multiply_registers_rows<kElement, 0>(scores, held.columns[0], right.bits());
#pragma unroll
    for (int step = 1; step < kHeldColumns / 16; ++step) {
      ptx::multiply_registers_rows<kElement, 1>(scores, held.columns[step],
                                                right.moved(column_step<kBlockQ>(step)).bits());
    }
#pragma unroll
    for (int step = kHeldColumns / 16; step < kColumns / 16; ++step) {
      ptx::multiply_shared<kElement, 1>(scores,
                                        left.moved(column_step<kBlockK, kOfPanel>(step)).bits(),
                                        right.moved(column_step<kBlockQ>(step)).bits());
    }
    ptx::commit_products();
  }

  // kFirst: no product of this sum is under way.
  template <bool kFirst, int kFrom = 0, int kTo = kSteps, int kFragments>
  static DFA_DEVICE void queue_gradient(float (&sum)[kFragments][4], Operand& left,
                                        unsigned queries) {
    const Descriptor right = k_in_rows<kBlockQ>(queries);
    if constexpr (kFirst) ptx::pin(sum);
    ptx::pin(reinterpret_cast<unsigned(&)[kTo - kFrom][4]>(left[kFrom]));
    ptx::fence_products();
#pragma unroll
    for (int step = kFrom; step < kTo; ++step) {
      ptx::multiply_registers<kElement>(sum, left[step], right.moved(row_step(step)).bits());
    }
    if constexpr (kTo == kSteps) ptx::commit_products();
  }

  // Of steps from kFrom to kTo, likewise below.
  template <int kFrom = 0, int kTo = kSteps>
  static DFA_DEVICE void round(Operand& rounded, const Scores& scores) {
#pragma unroll
    for (int k = kFrom; k < kTo; ++k) {
      rounded[k][0] = ptx::pack<kElement>(scores[2 * k][0], scores[2 * k][1]);
      rounded[k][1] = ptx::pack<kElement>(scores[2 * k][2], scores[2 * k][3]);
      rounded[k][2] = ptx::pack<kElement>(scores[2 * k + 1][0], scores[2 * k + 1][1]);
      rounded[k][3] = ptx::pack<kElement>(scores[2 * k + 1][2], scores[2 * k + 1][3]);
    }
  }

  template <int kFrom = 0, int kTo = kSteps>
  static DFA_DEVICE void exp2(Scores& scores, float scale_log2, const Pairs& lse) {
#pragma unroll
    for (int n = 2 * kFrom; n < 2 * kTo; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = ptx::exp2(fmaf(scores[n][i], scale_log2, -(i % 2 ? lse[n].y : lse[n].x)));
      }
    }
  }

  // What ALiBi takes from the exponents of a thread.
  struct Alibi {
    float slope;     // times log2(e)
    float after[2];  // from a query's own key to the thread's, of its two rows and first column
    DFA_DEVICE float less(float exponent, int n, int i) const {
      return fmaf(-slope, fabsf(after[i / 2] - static_cast<float>(n * 8 + i % 2)), exponent);
    }
  };

  using Biases = TransposedBias<kConfig.bias>;
  using Text = TransposedText<kConfig.text>;
  // Texts of a fragment wait for those before it, or all would be under way at once and spill: for
  // what they left in the scores' registers, or in wide pairs, of which a reader of these makes the
  // compiler serialize products (C7511), for p times the slope ahead of its way there.
  static constexpr bool kTextWaitsForScores = !kConfig.sm90_wide_pair();
  static constexpr int kTextsAtOnce = 2;  // fragments, where they wait for scores

  // Of logits that are not plain: weights go out rounded, and scores become what ds takes for
  // weights. Capped ones, which are tanh by now, have less of it by the derivative 1 - tanh^2,
  // which is 0 where a mask hides, of -inf. factor: of scores in exponents of 2. kept: of a
  // dropout (DropoutMask::draw_for_two), which marks by a sign what ds takes for dropped weights.
  // What a text's derivative is where weights are 0 reaches nobody.
  // lse_of(n): the pair of fragment n.
  template <typename LseOf>
  static DFA_DEVICE void weigh_logits(Scores& scores, Operand& rounded, float factor,
                                      const LseOf& lse_of, const Alibi& alibi, const Biases& biases,
                                      const Text& text, unsigned kept) {
    auto operands = text.operands();
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      const float2 lse = lse_of(n);
      float weights[4], shares[4];
      if (kConfig.text && kTextWaitsForScores && n >= kTextsAtOnce) {
        operands = text.operands_behind(scores[n - kTextsAtOnce]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores[n][i];
        float share = 1;
        if constexpr (kConfig.text) score = text.logit(score, operands, n, i, share);
        float exponent = fmaf(score, factor, -(i % 2 ? lse.y : lse.x));
        if constexpr (kConfig.alibi) exponent = alibi.less(exponent, n, i);
        if constexpr (kConfig.bias) exponent = biases.more(exponent, n, i);
        weights[i] = ptx::exp2(exponent);
        if constexpr (kConfig.softcap) share = ptx::saturate(fmaf(-score, score, 1.f));
        score = kConfig.text && weights[i] == 0 ? 0.f : weights[i] * share;
        shares[i] = weights[i] * share;
        if constexpr (kConfig.dropout) {
          const bool keeps = (kept >> (4 * n + i) & 1) != 0;
          weights[i] = keeps ? weights[i] : 0.f;
          score = keeps ? score : -score;
        }
      }
      rounded[n / 2][n % 2 * 2] = ptx::pack<kElement>(weights[0], weights[1]);
      rounded[n / 2][n % 2 * 2 + 1] = ptx::pack<kElement>(weights[2], weights[3]);
      if constexpr (kConfig.text && !kTextWaitsForScores) operands = text.operands_behind(shares);
    }
  }

  using Factor = DropoutFactor<kConfig.dropout>;

  // Of weights that a dropout takes, which become negative: what goes out rounded is 0. kept: as
  // above.
  template <int kFrom, int kTo>
  static DFA_DEVICE void mark_dropped(Scores& p, unsigned kept) {
#pragma unroll
    for (int n = 2 * kFrom; n < 2 * kTo; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[n][i] = (kept >> (4 * n + i) & 1) != 0 ? p[n][i] : -p[n][i];
    }
  }
  template <int kFrom, int kTo>
  static DFA_DEVICE void round_kept(Operand& rounded, const Scores& p) {
    const auto kept = [&](int n, int i) { return Factor::is_marked(p[n][i]) ? 0.f : p[n][i]; };
#pragma unroll
    for (int n = 2 * kFrom; n < 2 * kTo; ++n) {
      rounded[n / 2][n % 2 * 2] = ptx::pack<kElement>(kept(n, 0), kept(n, 1));
      rounded[n / 2][n % 2 * 2 + 1] = ptx::pack<kElement>(kept(n, 2), kept(n, 3));
    }
  }

  // delta_of(n): the pair of fragment n.
  template <typename DeltaOf>
  static DFA_DEVICE void differentiate(Scores& dp, const Scores& p, const DeltaOf& delta_of,
                                       const Factor& factor) {
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      const float2 delta = delta_of(n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        dp[n][i] = factor.score_gradient(p[n][i], dp[n][i], i % 2 ? delta.y : delta.x);
      }
    }
  }
};

}  // namespace dfa
