#pragma once

#include "kernels/args.h"
#include "kernels/either.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/schedule/seqlen_info.h"
#include "kernels/tile/product.cuh"
#include "kernels/variant/bias.cuh"
#include "kernels/variant/fragment_text.cuh"
#include "kernels/variant/quick_tanh.cuh"

// What becomes of scores in Hopper's kernels, where each instruction of a score costs some
// hundredth of the kernel: they become what has the weight exp2(magnitude_log2 * value - …), so
// that the softmax's own multiply-add does the rest.
//   plain      the score, as it is
//   text       the logit that it makes of score * scale, in place of which it stands below; the
//              magnitude is log2(e). What it hides is -inf, whatever comes behind
//   softcap    tanh(score * scale / softcap), whose magnitude is softcap * log2(e)
//   alibi      all in exponents of 2, less slope * log2(e) a key between; the magnitude is 1
//   bias       the logit, or -inf where it is hidden; the magnitude is log2(e). With ALiBi in
//              exponents of 2, as there
// Factors come folded so (LogitArgs).
namespace dfa {

// Scores become tanh(score * factor), but what is hidden by -inf before (`kTold`) stays so. What no
// score exceeds is made to wait for those of fragments before: left to itself the compiler makes
// all at once and spills.
template <bool kTold = false, int kFragments>
DFA_DEVICE void cap_scores(float (&scores)[kFragments][4], float factor) {
  constexpr int kAtOnce = 2;
  float most = kTanhIsOne;
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
    if (n >= kAtOnce) most = fmaxf(most, scores[n - kAtOnce][3]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float score = scores[n][i], capped = quick_tanh(score * factor, most);
      scores[n][i] = kTold && score == -ptx::infinity() ? score : capped;
    }
  }
}

// Of the two rows of a thread (i and i + 8 of its warp's 16) of one work tile.
template <auto kConfig>
class ExponentLogits {
  static constexpr bool kSoftcap = kConfig.softcap, kAlibi = kConfig.alibi, kBias = kConfig.bias;
  static constexpr bool kText = kConfig.text;
  static constexpr int kHeads = kConfig.pack_gqa, kQueryRows = kConfig.query_rows();

 public:
  static constexpr bool kPlain = !kSoftcap && !kAlibi && !kBias && !kText;

  static DFA_DEVICE float magnitude_log2(const KernelArgs& args) {
    if (kAlibi) return 1.f;
    if (kBias) return kLog2E;
    if (kSoftcap) return args.logits.softcap;
    return kText ? kLog2E : args.magnitude_log2;
  }

  // Rows of this head, or of as many as are packed from it on; `row` is the warp's first, `biases`
  // where copies of theirs have their place.
  DFA_DEVICE ExponentLogits(const KernelArgs& args, const SeqlenInfo<kConfig.varlen>& seq, int head,
                            int row, unsigned biases = 0)
      : text_(args, seq, head, row), bias_(args, seq, head, row, biases) {
    if constexpr (kAlibi) {
      row += static_cast<int>(ptx::kept_thread_index() % 32 / 4);
      const long long first = seq.batch * args.logits.slopes_of_batch + head * kHeads;
#pragma unroll
      for (int half = 0; half < kSlopes; ++half) {
        // Rows that are left have the last head's, which nobody reads.
        const int at = (row + half * 8) % kQueryRows, last = kHeads - 1;
        slopes_[half] = kLog2E * args.logits.alibi_slopes[first + (at < last ? at : last)];
      }
      diagonal_ = row / kQueryRows + seq.sk(args) - seq.sq(args);
    }
  }

  // Before a tile's scores, from this key on, are made logits, and after those of the tile before.
  DFA_DEVICE void fetch(const KernelArgs& args, int key) const { bias_.fetch(args, key); }

  // `key` is the first score's of the warp.
  template <int kKeys>
  DFA_DEVICE void apply(const KernelArgs& args, float (&scores)[kKeys][4], int key) const {
    if constexpr (kText) text_.apply(args, scores, key);
    if constexpr (kSoftcap) cap_scores<kText>(scores, args.logits.inverse_softcap);
    if constexpr (kAlibi) {
      const int first = key + static_cast<int>(ptx::kept_thread_index() % 4) * 2 - diagonal_;
      // Keys from a row's own to this thread's first.
      const int after[2] = {first, first - 8 / kQueryRows};
      const float factor = exponents(args);
      if (after[0] + kKeys * 8 - 7 <= 0) {
        on_one_side(scores, after, factor, 1);
      } else if (after[1] >= 0) {
        on_one_side(scores, after, factor, -1);
      } else {
        around(scores, after, factor);
      }
    }
    if constexpr (kBias) {
      const float factor = kAlibi ? 1.f : kLn2 * exponents(args);
      bias_.template add<kText>(args, scores, key, factor);
    }
  }

 private:
  // What makes exponents of 2 of what is there before ALiBi and a bias.
  static DFA_DEVICE float exponents(const KernelArgs& args) {
    if (kSoftcap) return args.logits.softcap;
    return kText ? kLog2E : args.scale_log2;
  }
  // What a text hides stays hidden.
  static DFA_DEVICE float kept(float score, float logit) {
    if constexpr (!kText) return logit;
    return score == -ptx::infinity() ? score : logit;
  }

  DFA_DEVICE float slope(int i) const { return slopes_[kSlopes == 1 ? 0 : i / 2]; }

  // All keys lie before the rows' own (sign 1) or behind: two multiply-adds a score.
  template <int kKeys>
  DFA_DEVICE void on_one_side(float (&scores)[kKeys][4], const int (&after)[2], float factor,
                              float sign) const {
    const float rise[2] = {sign * slope(0), sign * slope(2)};
    const float begin[2] = {rise[0] * static_cast<float>(after[0]),
                            rise[1] * static_cast<float>(after[1])};
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float less = fmaf(rise[i / 2], static_cast<float>(n * 8 + i % 2), begin[i / 2]);
        scores[n][i] = kept(scores[n][i], fmaf(scores[n][i], factor, less));
      }
    }
  }

  template <int kKeys>
  DFA_DEVICE void around(float (&scores)[kKeys][4], const int (&after)[2], float factor) const {
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float away =
            fabsf(static_cast<float>(after[i / 2]) + static_cast<float>(n * 8 + i % 2));
        scores[n][i] = kept(scores[n][i], fmaf(scores[n][i], factor, -slope(i) * away));
      }
    }
  }

  static constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  static constexpr int kSlopes = kQueryRows > 8 ? 2 : 1;  // else 8 rows further is the same head

  FragmentText<kText, kHeads, kQueryRows> text_;
  FragmentBias<kBias, kConfig.bias_fp32, kConfig.block_k, kAlibi> bias_;
  float slopes_[kSlopes] = {};
  int diagonal_ = 0;  // the key beside the thread's first row
};

}  // namespace dfa
