#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/element.h"
#include "base/fill.h"
#include "dfa/attention.h"

namespace dfa {

// Host tensors of a problem, in its strides, filled with seeded normal values; outputs start as
// NaN.
struct Tensors {
  Problem p;
  std::vector<std::byte> q, k, v, o, d_o, dq, dk, dv;
  std::vector<float> lse;

  explicit Tensors(const std::string& line, std::uint64_t seed = 1) : p(parse_problem(line)) {
    const std::int64_t q_count = extent(p.q(), p.b, p.hq, p.sq, p.d);
    const std::int64_t k_count = extent(p.k(), p.b, p.hk, p.sk, p.d);
    const std::int64_t v_count = extent(p.v(), p.b, p.hk, p.sk, p.dv);
    const std::int64_t o_count = extent(p.o(), p.b, p.hq, p.sq, p.dv);
    q = filled(q_count, seed);
    k = filled(k_count, seed + 1);
    v = filled(v_count, seed + 2);
    d_o = filled(o_count, seed + 3);
    o = empty(o_count);
    dq = empty(q_count);
    dk = empty(k_count);
    dv = empty(v_count);
    lse.assign(static_cast<std::size_t>(p.b * p.hq * p.sq), std::nanf(""));
  }

  ForwardArgs forward_args() {
    return {.q = q.data(), .k = k.data(), .v = v.data(), .o = o.data(), .lse = lse.data()};
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
            .dv = dv.data()};
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
