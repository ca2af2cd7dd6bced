#pragma once

#include "kernels/ptx/arithmetic.cuh"
#include "kernels/softmax/tile_mask.h"
#include "kernels/tile/product.cuh"
#include "kernels/variant/logit_transform.cuh"

// The running softmax of a warp's rows, and masks on its scores.
namespace dfa {

// fp32 keeps what a logit's last bits say: the scaled score is rounded as in lse, so that the
// rounding cancels in their difference, and the rest is rounded once a step. With 16-bit elements
// one multiply-add does it all.
template <DType kElement>
inline constexpr bool kStepwise = kElement == DType::fp32;

// Scores outside the columns that their row sees become `hidden`. `row` and `column` are those of
// the warp's first score; begin(row) and end(row) bound what a row sees.
template <int kRows, int kColumns, typename Begin, typename End>
DFA_DEVICE void hide_outside(Sum<kRows, kColumns>& scores, int row, int column, float hidden,
                             const Begin& begin, const End& end) {
  const int lane = static_cast<int>(ptx::thread_index() % 32);
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = row + m * 16 + half * 8 + lane / 4;
      const int first = begin(at) - column - lane % 4 * 2;
      const int last = end(at) - column - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int offset = n * 8 + i;
          if (offset < first || offset >= last) scores[m][n][2 * half + i] = hidden;
        }
      }
    }
  }
}

// Columns are keys, rows queries, or `kOfQuery` of each.
template <int kOfQuery = 1, int kRows, int kColumns, typename AnyMask>
DFA_DEVICE void hide_masked(Sum<kRows, kColumns>& scores, const AnyMask& mask, int first, int key,
                            float hidden) {
  hide_outside(
      scores, first, key, hidden, [&](int row) { return mask.key_begin(row / kOfQuery); },
      [&](int row) { return mask.key_end(row / kOfQuery); });
}

// Rows are keys, columns queries. No query sees a key from sk on: where all of a row's logits are
// far below zero, exp(0 - lse) would overflow.
template <int kRows, int kColumns, typename AnyMask>
DFA_DEVICE void hide_masked_transposed(Sum<kRows, kColumns>& scores, const AnyMask& mask, int key,
                                       int query, float hidden) {
  hide_outside(
      scores, key, query, hidden, [&](int row) { return mask.query_begin(row); },
      [&](int row) { return row < mask.sk ? mask.query_end(row) : 0; });
}

// Scores that a bitmap does not have (BlockLists) become `hidden`: of queries from `query` of its
// rows on and keys from `key` on, both multiples of 16, and keys of 32 where a row has as many.
// Columns are keys, rows queries.
template <int kRows, int kColumns>
DFA_DEVICE void hide_unlisted(Sum<kRows, kColumns>& scores, const unsigned* bits, int row_words,
                              int query, int key, float hidden) {
  const int lane = static_cast<int>(ptx::thread_index() % 32);
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query + m * 16 + half * 8 + lane / 4;
      const unsigned* words = bits + row * row_words + key / 32;
      unsigned word = 0;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        if (n % 4 == 0) word = words[n / 4] >> (key % 32 + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if ((word >> (n % 4 * 8 + i) & 1u) == 0) scores[m][n][2 * half + i] = hidden;
        }
      }
    }
  }
}

// Columns are queries, rows keys.
template <int kRows, int kColumns>
DFA_DEVICE void hide_unlisted_transposed(Sum<kRows, kColumns>& scores, const unsigned* bits,
                                         int row_words, int query, int key, float hidden) {
  const int lane = static_cast<int>(ptx::thread_index() % 32);
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    const int first = key + m * 16;  // of 16 keys, which lie in one word
    const unsigned* words = bits + (query + lane % 4 * 2) * row_words + first / 32;
    const int shift = first % 32 + lane / 4;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned word = words[(n * 8 + i) * row_words] >> shift;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if ((word >> (half * 8) & 1u) == 0) scores[m][n][2 * half + i] = hidden;
        }
      }
    }
  }
}

// exp(scale * score - lse) with what the delta kernel left of lse: its base-2 logarithm, or, where
// steps are rounded, the natural one.
template <DType kElement, typename Logits = PlainLogits>
DFA_DEVICE float probability(const KernelArgs& args, float score, float lse) {
  constexpr float kLog2E = 1.4426950408889634f;
  if constexpr (kStepwise<kElement>) {
    return ptx::exp2((__fmul_rn(score, Logits::scale(args)) - lse) * kLog2E);
  } else {
    return ptx::exp2(fmaf(score, Logits::scale_log2(args), -lse));
  }
}

// Maximum and sum of each row so far. The reference that is subtracted may lag behind the maximum
// by kSlack in the exponent: sums and weights then are up to 2^kSlack, and the output is rescaled
// only when the maximum has moved further. Rounded stepwise, it is the maximum. kLift: weights, and
// with them sums and outputs, are 2^kLift as large, for elements whose small numbers lose bits.
template <int kRows, bool kStepwise = false, typename Logits = PlainLogits, int kLift = 0>
class OnlineSoftmax {
  static_assert(kLift == 0 || !kStepwise);

 public:
  explicit DFA_DEVICE OnlineSoftmax(const KernelArgs& args) : args_(args) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        reference_[m][half] = -ptx::infinity();
        sum_[m][half] = 0;
      }
    }
  }

  // Under a negative scale the largest weight is the least score's.
  template <int kColumns>
  DFA_DEVICE void orient(Sum<kRows, kColumns>& scores) const {
    if (Logits::scale_log2(args_) >= 0) return;
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][n][i] = -scores[m][n][i];
      }
    }
  }

  // Scores become weights exp2(scale * (score - reference)); the output follows the reference.
  template <int kColumns, int kOutputs>
  DFA_DEVICE void step(Sum<kRows, kColumns>& scores, Sum<kRows, kOutputs>& output) {
    follow_maximum(scores, output);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float reference = finite(reference_[m][half]);
        const float shift =
            kLift == 0 ? -magnitude_log2() * reference : kLift - magnitude_log2() * reference;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            const float exponent = kStepwise ? (scores[m][n][i] - reference) * magnitude_log2()
                                             : fmaf(scores[m][n][i], magnitude_log2(), shift);
            scores[m][n][i] = ptx::exp2(exponent);
            sum_[m][half] += scores[m][n][i];
          }
        }
      }
    }
  }

  // 1 / sum of each row, 0 for a row that saw no key, and its log-sum-exp.
  DFA_DEVICE void finish(float (&inverse)[kRows][2], float (&lse)[kRows][2]) const {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = ptx::quad_sum(sum_[m][half]);
        inverse[m][half] = sum == 0 ? 0.f : kStepwise ? __frcp_rn(sum) : ptx::reciprocal(sum);
        lse[m][half] = sum == 0 ? -ptx::infinity() : log_sum(reference_[m][half], sum);
      }
    }
  }

  // The same where one more logit, without a value, is in the denominator.
  DFA_DEVICE void finish(float (&inverse)[kRows][2], float (&lse)[kRows][2], float sink) const {
    static_assert(kLift == 0);
    constexpr float kLn2 = 0.6931471805599453f, kLog2E = 1.4426950408889634f;
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float reference = magnitude_log2() * reference_[m][half];
        const float highest = fmaxf(reference, sink * kLog2E);
        const float own = ptx::exp2(reference - finite(highest));
        const float sum =
            fmaf(ptx::quad_sum(sum_[m][half]), own, ptx::exp2(sink * kLog2E - finite(highest)));
        inverse[m][half] = sum == 0 ? 0.f : own / sum;
        lse[m][half] = sum == 0 ? -ptx::infinity() : (highest + ptx::log2(sum)) * kLn2;
      }
    }
  }

 private:
  static constexpr float kSlack = kStepwise ? 0 : 8;

  DFA_DEVICE float magnitude_log2() const { return Logits::magnitude_log2(args_); }

  DFA_DEVICE float log_sum(float reference, float sum) const {
    constexpr float kLn2 = 0.6931471805599453f;
    if constexpr (kStepwise) {
      return __fmul_rn(fabsf(Logits::scale(args_)), reference) + ptx::log2(sum) * kLn2;
    } else if constexpr (kLift == 0) {
      return (magnitude_log2() * reference + ptx::log2(sum)) * kLn2;
    } else {
      return (magnitude_log2() * reference + (ptx::log2(sum) - kLift)) * kLn2;
    }
  }

  // A row of masked scores alone keeps -inf, which must not meet -inf in a subtraction.
  static DFA_DEVICE float finite(float reference) {
    return reference == -ptx::infinity() ? 0.f : reference;
  }

  template <int kColumns, int kOutputs>
  DFA_DEVICE void follow_maximum(const Sum<kRows, kColumns>& scores, Sum<kRows, kOutputs>& output) {
    float highest[kRows][2];
    bool moved = false;
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = fmaxf(scores[m][0][2 * half], scores[m][0][2 * half + 1]);
#pragma unroll
        for (int n = 1; n < kColumns; ++n) {
          most = fmaxf(most, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        }
        highest[m][half] = fmaxf(reference_[m][half], ptx::quad_max(most));
        moved |= (highest[m][half] - reference_[m][half]) * magnitude_log2() > kSlack;
      }
    }
    if (__any_sync(ptx::kWholeWarp, moved)) rescale(highest, output);
  }

  template <int kOutputs>
  DFA_DEVICE void rescale(const float (&highest)[kRows][2], Sum<kRows, kOutputs>& output) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float factor =
            ptx::exp2((reference_[m][half] - finite(highest[m][half])) * magnitude_log2());
        reference_[m][half] = highest[m][half];
        sum_[m][half] *= factor;
#pragma unroll
        for (int n = 0; n < kOutputs; ++n) {
          output[m][n][2 * half] *= factor;
          output[m][n][2 * half + 1] *= factor;
        }
      }
    }
  }

  const KernelArgs& args_;  // in constant memory: its scale costs no register
  float reference_[kRows][2];
  float sum_[kRows][2];
};

}  // namespace dfa
