#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/element.h"
#include "dfa/attention.h"
#include "reference/head_text.h"
#include "spec/bias.h"

namespace dfa {

// What becomes of the products q k^T of one query head before the softmax, as the definition says
// it; no engine shares this.
template <typename Real>
class HeadLogits {
 public:
  HeadLogits(const Problem& p, const Logits& given, std::int64_t b, std::int64_t hq)
      : scale_(static_cast<Real>(p.softmax_scale())),
        cap_(static_cast<Real>(p.softcap)),
        shift_(p.sk - p.sq),
        text_(p, given, b, hq) {
    if (p.alibi) slope_ = static_cast<Real>(given.alibi_slopes[b * given.slopes_of_batch + hq]);
    if (p.sink) sink_ = static_cast<Real>(given.sinks[hq]);
    if (!p.bias) return;
    bias_ = given.bias;
    bias_type_ = p.bias->dtype;
    bias_strides_ = bias_strides(p, given.bias_strides);
    bias_begin_ = b * bias_strides_.batch + hq * bias_strides_.head;
    bias_key_ = p.bias->of_key ? 1 : 0;
  }

  bool sees(std::int64_t i, std::int64_t j) const { return text_.sees(i, j); }

  Real of(Real product, std::int64_t i, std::int64_t j) const {
    Real logit = scale_ * product;
    if (text_.has_score()) {
      logit = text_.of(logit, i, j).value;
      if (hides(logit)) return -std::numeric_limits<Real>::infinity();
    }
    if (cap_ != 0) logit = cap_ * std::tanh(logit / cap_);
    logit -= slope_ * static_cast<Real>(std::abs(i + shift_ - j));
    if (bias_ == nullptr) return logit;
    const Real more = bias(i, j);
    return hides(more) ? -std::numeric_limits<Real>::infinity() : logit + more;
  }

  // How much of a logit's gradient scale * product gets: nothing where the key is hidden.
  Real derivative(Real product, std::int64_t i, std::int64_t j) const {
    Real logit = scale_ * product, slope = 1;
    if (text_.has_score()) {
      if (of(product, i, j) == -std::numeric_limits<Real>::infinity()) return 0;
      const auto text = text_.of(logit, i, j);
      logit = text.value;
      slope = text.slope;
    }
    if (cap_ == 0) return slope;
    const Real t = std::tanh(logit / cap_);
    return slope * (1 - t * t);
  }

  // -inf where there is none, which adds nothing to a sum of exponentials.
  Real sink() const { return sink_; }

 private:
  bool hides(Real value) const { return value < -1e30; }
  Real bias(std::int64_t i, std::int64_t j) const {
    const std::int64_t at = bias_begin_ + i * bias_strides_.row + j * bias_key_;
    return static_cast<Real>(load_element(bias_, bias_type_, at));
  }

  Real scale_, cap_;
  std::int64_t shift_;
  HeadText<Real> text_;
  Real slope_ = 0;
  Real sink_ = -std::numeric_limits<Real>::infinity();
  const void* bias_ = nullptr;
  DType bias_type_ = DType::fp32;
  Strides bias_strides_{};
  std::int64_t bias_begin_ = 0, bias_key_ = 0;
};

}  // namespace dfa
