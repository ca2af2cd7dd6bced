#pragma once

#include <cstdint>

#include "cpu/engine.h"
#include "dfa/mask.h"

// What becomes of scores q k^T before the softmax where logits are not plain: logit = scale *
// score, what a text makes of it, capped, less ALiBi's distance, with the bias added. Exponents are
// of the logits then, and the scale is 1.
namespace dfa::cpu {

template <class Isa>
class SimdLogits {
 public:
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;

  SimdLogits(const HeadShape& shape, float slope, const HeadBias& bias, const TextHead& text,
             int head = 0)
      : shape_(shape),
        slope_(slope),
        bias_(bias),
        text_{text.b, text.h + head},
        head_(head * bias.head) {}

  // `count` scores of the query `row` and the keys from `key` on become logits, and where the shape
  // chains() `derivatives`, if not null, what of a logit's gradient goes to scale * score.
  void transform(float* scores, int count, std::int64_t row, std::int64_t key,
                 float* derivatives) const {
    if (shape_.score_text) apply_text(scores, count, row, key, derivatives);
    const Vec scale = Isa::splat(shape_.score_text ? 1.0f : shape_.scale);
    const Vec slope = Isa::splat(slope_);
    const std::int64_t diagonal = row + shape_.sk - shape_.sq;
    for (int i = 0; i < count; i += kLanes) {
      Vec logit = Isa::load(scores + i) * scale;
      if (shape_.softcap != 0)
        logit = capped(logit, derivatives == nullptr ? nullptr : derivatives + i);
      if (shape_.score_text && shape_.softcap != 0) {  // no cap keeps a hidden key
        const Vec text = Isa::load(scores + i);
        logit = text < Isa::splat(kBiasHides) ? text : logit;
      }
      if (shape_.alibi) {
        const Vec after = Isa::splat(static_cast<float>(key + i - diagonal)) + lanes();
        logit = logit - slope * Isa::max(after, zero() - after);
      }
      if (shape_.bias) {
        const Vec more = bias_at(row, key + i);
        logit = more < Isa::splat(kBiasHides) ? Isa::splat(-__builtin_inff()) : logit + more;
      }
      Isa::store(scores + i, logit);
    }
  }

 private:
  static Vec zero() { return Isa::splat(0.0f); }
  static Vec lanes() {
    static constexpr float kNumbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static_assert(kLanes <= 16);
    return Isa::load(kNumbers);
  }

  // Of keys from `key` on; 0 behind the last key and the last row, of which blocks have more.
  Vec bias_at(std::int64_t row, std::int64_t key) const {
    if (row >= shape_.sq) return zero();
    const std::int64_t left = bias_.key == 0 ? 1 : shape_.sk - key;
    const int size = bytes_of(bias_.type);
    const std::byte* from = bias_.values + (head_ + row * bias_.row + key * bias_.key) * size;
    alignas(64) float values[kLanes] = {};
    if (left >= kLanes) {
      Isa::read_row(bias_.type, from, kLanes, values);
    } else if (left > 0) {
      alignas(64) std::byte few[kLanes * sizeof(float)] = {};
      __builtin_memcpy(few, from, static_cast<std::size_t>(left * size));
      Isa::read_row(bias_.type, few, kLanes, values);
    }
    return bias_.key == 0 ? Isa::splat(values[0]) : Isa::load(values);
  }

  // Rows behind the last query, of which blocks have more, have no logit that a text could make.
  void apply_text(float* scores, int count, std::int64_t row, std::int64_t key,
                  float* derivatives) const {
    for (int i = 0; i < count; i += kLanes) {
      Isa::store(scores + i, Isa::load(scores + i) * Isa::splat(shape_.scale));
    }
    if (row < shape_.sq) {
      return transform_by_text(*shape_.text, {text_, row, key}, scores, count, derivatives);
    }
    for (int i = 0; i < count && derivatives != nullptr; i += kLanes) {
      Isa::store(derivatives + i, zero());
    }
  }

  Vec capped(Vec logit, float* derivative) const {
    const Vec t = tanh(logit * Isa::splat(1.0f / shape_.softcap));
    if (derivative != nullptr) {
      const Vec of_cap = Isa::splat(1.0f) - t * t;
      Isa::store(derivative, shape_.score_text ? Isa::load(derivative) * of_cap : of_cap);
    }
    return t * Isa::splat(shape_.softcap);
  }

  // Small ones by the series, to x^11, as 1 - 2 / (e^2x + 1) would lose their last bits.
  static Vec tanh(Vec x) {
    constexpr float kSmall = 0.35f, kLarge = 10.0f, kTwiceLog2E = 0x1.715476p+1f;
    const Vec size = Isa::max(x, zero() - x);
    Vec e[] = {(zero() - Isa::max(zero() - size, Isa::splat(-kLarge))) * Isa::splat(kTwiceLog2E)};
    Isa::template exp2<false>(e);
    const Vec far = Isa::splat(1.0f) - Isa::splat(2.0f) / (e[0] + Isa::splat(1.0f));
    const Vec square = x * x;
    Vec series = Isa::splat(-1382.0f / 155925.0f);
    constexpr float kTerms[] = {62.0f / 2835.0f, -17.0f / 315.0f, 2.0f / 15.0f, -1.0f / 3.0f, 1.0f};
    for (const float term : kTerms) {
      series = Isa::fma(series, square, Isa::splat(term));
    }
    const Vec signed_far = x < zero() ? zero() - far : far;
    return size < Isa::splat(kSmall) ? series * x : signed_far;
  }

  const HeadShape& shape_;
  float slope_;
  const HeadBias& bias_;
  TextHead text_;
  std::int64_t head_;
};

}  // namespace dfa::cpu
