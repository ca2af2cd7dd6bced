#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/element.h"
#include "base/fill.h"
#include "dfa/attention.h"
#include "spec/bias.h"
#include "spec/lengths.h"

namespace dfa {

// Host tensors of a problem, in its strides, filled with seeded normal values; outputs start as
// NaN.
struct Tensors {
  Problem p;
  std::vector<std::byte> q, k, v, o, d_o, dq, dk, dv;
  std::vector<float> lse;
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;  // of packed sequences
  std::vector<float> slopes, sinks, d_sinks;             // of [b, hq] for alibi, else of [hq]
  std::vector<std::byte> bias;
  std::vector<float> d_bias;

  explicit Tensors(const std::string& line, std::uint64_t seed = 1) : p(parse_problem(line)) {
    const std::int64_t b = p.batches(), q_rows = p.q_rows(), k_rows = p.k_rows();
    const std::int64_t q_count = extent(p.q(), b, p.hq, q_rows, p.d);
    const std::int64_t k_count = extent(p.k(), b, p.hk, k_rows, p.d);
    const std::int64_t v_count = extent(p.v(), b, p.hk, k_rows, p.dv);
    const std::int64_t o_count = extent(p.o(), b, p.hq, q_rows, p.dv);
    q = filled(q_count, seed);
    k = filled(k_count, seed + 1);
    v = filled(v_count, seed + 2);
    d_o = filled(o_count, seed + 3);
    o = empty(o_count);
    dq = empty(q_count);
    dk = empty(k_count);
    dv = empty(v_count);
    lse.assign(static_cast<std::size_t>(b * p.hq * q_rows), std::nanf(""));
    if (p.alibi) slopes = floats(p.b * p.hq, seed + 4, 0.2f);
    if (p.sink) sinks = floats(p.hq, seed + 5, 1.5f);
    d_sinks.assign(sinks.size(), std::nanf(""));
    if (p.bias) {
      const std::int64_t count = bias_sizes(p).elements();
      bias.resize(static_cast<std::size_t>(count * bytes_of(p.bias->dtype)));
      fill_normal(bias.data(), p.bias->dtype, count, seed + 6);
      d_bias.assign(static_cast<std::size_t>(count), std::nanf(""));
    }
    if (p.packed()) {
      cu_seqlens_q = cu_seqlens_of(p.lens_q);
      cu_seqlens_k = cu_seqlens_of(p.lens_k);
    }
  }

  // On the host.
  Sequences sequences() const {
    if (!p.packed()) return {};
    return {.cu_seqlens_q = cu_seqlens_q.data(), .cu_seqlens_k = cu_seqlens_k.data()};
  }

  Logits logits() const {
    return {.alibi_slopes = p.alibi ? slopes.data() : nullptr,
            .slopes_of_batch = p.alibi ? p.hq : 0,
            .sinks = p.sink ? sinks.data() : nullptr,
            .bias = p.bias ? bias.data() : nullptr,
            .bias_strides = p.bias ? bias_strides(p, {}) : Strides{}};
  }

  ForwardArgs forward_args() {
    return {.q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .o = o.data(),
            .lse = lse.data(),
            .sequences = sequences(),
            .logits = logits()};
  }
  BackwardArgs backward_args() {
    return {.q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .o = o.data(),
            .lse = lse.data(),
            .d_o = d_o.data(),
            .dq = dq.data(),
            .dk = dk.data(),
            .dv = dv.data(),
            .sequences = sequences(),
            .logits = logits(),
            .d_sinks = p.sink ? d_sinks.data() : nullptr,
            .d_bias = d_bias.empty() ? nullptr : d_bias.data(),
            .d_bias_strides = p.bias ? bias_strides(p, {}) : Strides{}};
  }

  float at(const std::vector<std::byte>& t, std::int64_t index) const {
    return load_element(t.data(), p.dtype, index);
  }
  void set(std::vector<std::byte>& t, std::int64_t index, float value) const {
    store_element(t.data(), p.dtype, index, value);
  }
  std::int64_t count(const std::vector<std::byte>& t) const {
    return static_cast<std::int64_t>(t.size()) / bytes_of(p.dtype);
  }

 private:
  static std::vector<float> floats(std::int64_t count, std::uint64_t seed, float size) {
    std::vector<float> values(static_cast<std::size_t>(count));
    fill_normal(values.data(), DType::fp32, count, seed);
    for (float& value : values) value *= size;
    return values;
  }
  std::vector<std::byte> empty(std::int64_t count) const {
    return std::vector<std::byte>(static_cast<std::size_t>(count * bytes_of(p.dtype)),
                                  std::byte{0xff});
  }
  std::vector<std::byte> filled(std::int64_t count, std::uint64_t seed) const {
    std::vector<std::byte> data = empty(count);
    fill_normal(data.data(), p.dtype, count, seed);
    return data;
  }
};

}  // namespace dfa
