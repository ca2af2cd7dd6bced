#pragma once

#include "kernels/ptx/arithmetic.cuh"

// The running softmax of two rows of a thread (i and i + 8 of its warp's 16), in parts, so that a
// product may run between them: `follow` reads scores, `weigh` turns them into weights, `rescale`
// brings the output to the new reference.
namespace dfa {

// How far, in the exponent, a maximum may move before references follow, and what weights and sums
// are multiplied by. Of weights in e4m3, whose numbers end at 448, just above 2^8.8, and lose bits
// below 2^-6: they are at most 2^8 by their own maximum, and reach down as far as they can.
struct WideWeights {
  static constexpr float kSlack = 8, kOffset = 0;
};
struct E4m3Weights {
  static constexpr float kSlack = 0.8f, kOffset = 8;
};

template <typename Weights>
class LazyRescaleSoftmaxOf {
 public:
  explicit DFA_DEVICE LazyRescaleSoftmaxOf(float magnitude_log2) : magnitude_(magnitude_log2) {}

  DFA_DEVICE void start() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      reference_[half] = -ptx::infinity();
      sum_[half] = 0;
    }
  }

  // A row that nobody asked for: as if it saw no key.
  DFA_DEVICE void forget(int half) { sum_[half] = 0; }

  // Does a row of the warp have no reference yet?
  DFA_DEVICE bool open() const {
    const float least = fminf(reference_[0], reference_[1]);
    return __any_sync(ptx::kWholeWarp, least == -ptx::infinity());
  }

  // Takes the maxima of these scores, a row's first, for its reference.
  template <int kColumns>
  DFA_DEVICE void begin(const float (&scores)[kColumns][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) reference_[half] = highest(scores, half);
  }

  // Of a row, in all lanes that have columns of it.
  template <int kColumns>
  static DFA_DEVICE float highest(const float (&scores)[kColumns][4], int half) {
    float even = fmaxf(scores[0][2 * half], scores[0][2 * half + 1]);
    float odd = fmaxf(scores[1][2 * half], scores[1][2 * half + 1]);
#pragma unroll
    for (int n = 2; n < kColumns; n += 2) {
      even = fmaxf(even, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      odd = fmaxf(odd, fmaxf(scores[n + 1][2 * half], scores[n + 1][2 * half + 1]));
    }
    return ptx::quad_max(fmaxf(even, odd));
  }

  // Moves the references to the maxima where one of the warp's has moved by more than kSlack in the
  // exponent; weights are up to 2^kSlack otherwise, beside their offset. True: rescale() is due.
  template <int kColumns>
  DFA_DEVICE bool update_max(const float (&scores)[kColumns][4]) {
    const float most[2] = {highest(scores, 0), highest(scores, 1)};
    return update_max(most);
  }

  // The same by the maxima of both rows, whoever's scores they are of.
  DFA_DEVICE bool update_max(const float (&most)[2]) {
    float highest_yet[2];
    bool moved = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      highest_yet[half] = fmaxf(reference_[half], most[half]);
      moved |= (highest_yet[half] - reference_[half]) * magnitude_ > Weights::kSlack;
    }
    moved = __any_sync(ptx::kWholeWarp, moved);
    if (moved) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        factor_[half] = ptx::exp2((reference_[half] - finite(highest_yet[half])) * magnitude_);
        sum_[half] *= factor_[half];
        reference_[half] = highest_yet[half];
      }
    }
    return moved;
  }

  template <int kColumns>
  DFA_DEVICE void exp2(float (&scores)[kColumns][4]) {
    exp2(scores, magnitude_);
  }

  // The same of scores with a magnitude of their own, where references are exponents: that of the
  // softmax is 1.
  template <int kColumns>
  DFA_DEVICE void exp2(float (&scores)[kColumns][4], float magnitude) {
    const float shift[2] = {shift_of(0), shift_of(1)};
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& first = scores[n][2 * half];
        float& second = scores[n][2 * half + 1];
        first = ptx::exp2(fmaf(first, magnitude, shift[half]));
        second = ptx::exp2(fmaf(second, magnitude, shift[half]));
        sum_[half] += first + second;
      }
    }
  }

  template <int kOutputs>
  DFA_DEVICE void rescale(float (&output)[kOutputs][4]) const {
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) output[n][i] *= factor_[i / 2];
    }
  }

  // Of the columns that a thread has of a row, and what others have of it.
  DFA_DEVICE float sum(int half) const { return sum_[half]; }
  DFA_DEVICE void add_sum(int half, float sum) { sum_[half] += sum; }

  // 1 / sum of each row, 0 for a row that saw no key, and its log-sum-exp. Returns the two
  // sums together.
  DFA_DEVICE float finish(float (&inverse)[2], float (&lse)[2]) const {
    constexpr float kLn2 = 0.6931471805599453f;
    float both = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = ptx::quad_sum(sum_[half]);
      both += sum;
      inverse[half] = sum == 0 ? 0.f : ptx::reciprocal(sum);
      lse[half] =
          sum == 0 ? -ptx::infinity() : (magnitude_ * reference_[half] + log2_of(sum)) * kLn2;
    }
    return both;
  }

  // The same where each row has one more logit, without a value, in its denominator: added last, as
  // references and sums are of keys. The sums are those of keys alone, too.
  DFA_DEVICE float finish(float (&inverse)[2], float (&lse)[2], const float (&sinks)[2]) const {
    static_assert(Weights::kOffset == 0);
    constexpr float kLn2 = 0.6931471805599453f, kLog2E = 1.4426950408889634f;
    float both = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float of_keys = ptx::quad_sum(sum_[half]), sink = sinks[half] * kLog2E;
      both += of_keys;
      const float reference = magnitude_ * reference_[half];
      const float highest = fmaxf(reference, sink), level = finite(highest);
      const float own = ptx::exp2(reference - level);
      const float sum = fmaf(of_keys, own, ptx::exp2(sink - level));
      inverse[half] = sum == 0 ? 0.f : own * ptx::reciprocal(sum);
      lse[half] = sum == 0 ? -ptx::infinity() : (highest + ptx::log2(sum)) * kLn2;
    }
    return both;
  }

 private:
  DFA_DEVICE float shift_of(int half) const {
    const float shift = -magnitude_ * finite(reference_[half]);
    if constexpr (Weights::kOffset == 0) return shift;
    return shift + Weights::kOffset;
  }
  static DFA_DEVICE float log2_of(float sum) {
    if constexpr (Weights::kOffset == 0) return ptx::log2(sum);
    return ptx::log2(sum) - Weights::kOffset;
  }

  // A row of masked scores alone keeps -inf, which must not meet -inf in a subtraction.
  static DFA_DEVICE float finite(float reference) {
    return reference == -ptx::infinity() ? 0.f : reference;
  }

  float magnitude_;
  float reference_[2];
  float sum_[2];
  float factor_[2];
};

using LazyRescaleSoftmax = LazyRescaleSoftmaxOf<WideWeights>;

}  // namespace dfa
