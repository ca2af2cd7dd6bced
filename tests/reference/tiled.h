#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/element.h"
#include "tensors.h"

// FlashAttention in miniature, for the ruler to measure: tiles of keys, online softmax, backward by
// recomputation, in the element's precision. Each fault is one that kernels really have.
namespace dfa {

enum class Fault {
  none,
  dropped_tile,         // the last tile of keys is never read
  late_mask,            // causal rows see one key too many
  early_mask,           // causal rows see one key too few
  missing_rescale,      // o keeps the old maximum when it moves
  missing_sum_rescale,  // the sum keeps the old maximum when it moves
  unscaled_max,         // the maximum is taken before the scale
  wrong_kv_head,        // h % hk for h / group
  unwritten_row,        // the last row of each head is left as it was
  unscaled_dq,
  unscaled_dk,
  missing_delta,     // dS = P dP
  dk_of_one_head,    // the group's query heads overwrite one another
  dv_from_unmasked,  // the mask is forgotten when P is recomputed
};

class Tiled {
 public:
  Tiled(Tensors& tensors, Fault fault) : t_(tensors), p_(tensors.p), fault_(fault) {
    scale_ = static_cast<float>(p_.softmax_scale());
  }

  void forward() {
    for_each_row([&](std::int64_t b, std::int64_t h, std::int64_t i) {
      if (fault_ == Fault::unwritten_row && i == p_.sq - 1) return;
      forward_row(b, h, i);
    });
  }

  void backward() {
    std::vector<float> dk(static_cast<std::size_t>(t_.count(t_.dk)), 0.0f);
    std::vector<float> dv(static_cast<std::size_t>(t_.count(t_.dv)), 0.0f);
    for_each_row([&](std::int64_t b, std::int64_t h, std::int64_t i) {
      const bool first_row_of_later_head = i == 0 && h % (p_.hq / p_.hk) != 0;
      if (fault_ == Fault::dk_of_one_head && first_row_of_later_head) {
        const auto start = dk.begin() + at(p_.k(), b, key_head(h), 0);
        std::fill(start, start + p_.sk * p_.d, 0.0f);
      }
      backward_row(b, h, i, dk, dv);
    });
    for (std::int64_t n = 0; n < t_.count(t_.dk); ++n) {
      t_.set(t_.dk, n, dk[static_cast<std::size_t>(n)]);
    }
    for (std::int64_t n = 0; n < t_.count(t_.dv); ++n) {
      t_.set(t_.dv, n, dv[static_cast<std::size_t>(n)]);
    }
  }

 private:
  static constexpr std::int64_t kTile = 16;

  template <typename Visit>
  void for_each_row(Visit&& visit) {
    for (std::int64_t b = 0; b < p_.b; ++b) {
      for (std::int64_t h = 0; h < p_.hq; ++h) {
        for (std::int64_t i = 0; i < p_.sq; ++i) visit(b, h, i);
      }
    }
  }

  static std::int64_t at(const Strides& s, std::int64_t b, std::int64_t h, std::int64_t row) {
    return b * s.batch + h * s.head + row * s.row;
  }
  std::int64_t key_head(std::int64_t h) const {
    return fault_ == Fault::wrong_kv_head ? h % p_.hk : h / (p_.hq / p_.hk);
  }
  float rounded(float value) const { return round_to(p_.dtype, value); }

  std::int64_t key_end(std::int64_t i) const {
    std::int64_t end = p_.mask.key_end(i, p_.sq, p_.sk);
    if (fault_ == Fault::late_mask) end = std::min<std::int64_t>(p_.sk, end + 1);
    if (fault_ == Fault::early_mask && end < p_.sk) end = std::max<std::int64_t>(0, end - 1);
    if (fault_ == Fault::dropped_tile) end = std::min(end, (p_.sk - 1) / kTile * kTile);
    return end;
  }

  // Sums in four interleaved chains, as vector code does: another order than the yardstick's.
  float dot(const std::vector<std::byte>& x, std::int64_t x0, const std::vector<std::byte>& y,
            std::int64_t y0, std::int64_t count) const {
    float sums[4] = {};
    for (std::int64_t n = 0; n < count; ++n) sums[n % 4] += t_.at(x, x0 + n) * t_.at(y, y0 + n);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  float score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return dot(t_.q, at(p_.q(), b, h, i), t_.k, at(p_.k(), b, key_head(h), j), p_.d);
  }

  void forward_row(std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t begin = p_.mask.key_begin(i, p_.sq, p_.sk), end = key_end(i);
    float maximum = -std::numeric_limits<float>::infinity(), sum = 0;
    std::vector<float> o(static_cast<std::size_t>(p_.dv), 0.0f);
    for (std::int64_t first = begin; first < end; first += kTile) {
      add_tile(b, h, i, first, std::min(first + kTile, end), maximum, sum, o);
    }
    for (std::int64_t x = 0; x < p_.dv; ++x) {
      const float value = sum > 0 ? o[static_cast<std::size_t>(x)] / sum : 0.0f;
      t_.set(t_.o, at(p_.o(), b, h, i) + x, value);
    }
    const float log_of_scale = fault_ == Fault::unscaled_max ? maximum * scale_ : maximum;
    t_.lse[static_cast<std::size_t>((b * p_.hq + h) * p_.sq + i)] = log_of_scale + std::log(sum);
  }

  void add_tile(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t first,
                std::int64_t end, float& maximum, float& sum, std::vector<float>& o) {
    std::vector<float> s;
    float tile_maximum = maximum;
    for (std::int64_t j = first; j < end; ++j) {
      const float product = score(b, h, i, j);
      s.push_back(scale_ * product);
      tile_maximum = std::max(tile_maximum, fault_ == Fault::unscaled_max ? product : s.back());
    }
    const float rescale = std::exp(maximum - tile_maximum);
    maximum = tile_maximum;
    if (fault_ != Fault::missing_sum_rescale) sum *= rescale;
    for (float& value : o) value *= fault_ == Fault::missing_rescale ? 1.0f : rescale;
    for (std::int64_t j = first; j < end; ++j) {
      const float probability = std::exp(s[static_cast<std::size_t>(j - first)] - maximum);
      sum += probability;
      const std::int64_t v = at(p_.v(), b, key_head(h), j);
      for (std::int64_t x = 0; x < p_.dv; ++x) {
        o[static_cast<std::size_t>(x)] += rounded(probability) * t_.at(t_.v, v + x);
      }
    }
  }

  void backward_row(std::int64_t b, std::int64_t h, std::int64_t i, std::vector<float>& dk,
                    std::vector<float>& dv) {
    const std::int64_t q = at(p_.q(), b, h, i), o = at(p_.o(), b, h, i), hk = key_head(h);
    const float lse = t_.lse[static_cast<std::size_t>((b * p_.hq + h) * p_.sq + i)];
    const float delta = fault_ == Fault::missing_delta ? 0.0f : dot(t_.d_o, o, t_.o, o, p_.dv);
    std::vector<float> dq(static_cast<std::size_t>(p_.d), 0.0f);
    const bool whole = fault_ == Fault::dv_from_unmasked;
    const std::int64_t begin = whole ? 0 : p_.mask.key_begin(i, p_.sq, p_.sk);
    const std::int64_t end = whole ? p_.sk : key_end(i);
    for (std::int64_t j = begin; j < end; ++j) {
      const std::int64_t k = at(p_.k(), b, hk, j), v = at(p_.v(), b, hk, j);
      const float probability = std::exp(scale_ * score(b, h, i, j) - lse);
      const float ds = rounded(probability * (dot(t_.d_o, o, t_.v, v, p_.dv) - delta));
      for (std::int64_t x = 0; x < p_.d; ++x) {
        dq[static_cast<std::size_t>(x)] += ds * t_.at(t_.k, k + x);
        dk[static_cast<std::size_t>(k + x)] +=
            (fault_ == Fault::unscaled_dk ? 1.0f : scale_) * ds * t_.at(t_.q, q + x);
      }
      for (std::int64_t x = 0; x < p_.dv; ++x) {
        dv[static_cast<std::size_t>(v + x)] += rounded(probability) * t_.at(t_.d_o, o + x);
      }
    }
    const float dq_scale = fault_ == Fault::unscaled_dq ? 1.0f : scale_;
    for (std::int64_t x = 0; x < p_.d; ++x) {
      t_.set(t_.dq, q + x, dq_scale * dq[static_cast<std::size_t>(x)]);
    }
  }

  Tensors& t_;
  const Problem& p_;
  Fault fault_;
  float scale_;
};

}  // namespace dfa
