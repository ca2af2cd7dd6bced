#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/element.h"
#include "base/instrumented.h"
#include "dfa/mask.h"

// Attention as the definition has it, one head, dense rows: in double it is the truth of the engine
// tests; in float with S, P, dP and dS rounded to the element type it is the error that plain code
// of that type makes.
namespace dfa::test {

struct PlainShape {
  int sq, sk, d, dv;
  Mask mask;
  float scale;
};

template <typename Real>
struct Plain {
  using Values = std::vector<Real>;
  Values o, lse, dq, dk, dv;
  Real largest_dp = 0;  // of |do v^T|

  Plain(const PlainShape& shape, DType round, const std::vector<float>& q,
        const std::vector<float>& k, const std::vector<float>& v, const std::vector<float>& d_o)
      : o(size(shape.sq, shape.dv)),
        lse(size(shape.sq, 1)),
        dq(size(shape.sq, shape.d)),
        dk(size(shape.sk, shape.d)),
        dv(size(shape.sk, shape.dv)),
        s_(shape),
        type_(round) {
    for (int i = 0; i < s_.sq; ++i) row(i, q, k, v, d_o);
    for (Values* values : {&o, &dq, &dk, &dv}) {
      for (Real& x : *values) x = rounded(x);
    }
  }

 private:
  static std::size_t size(int rows, int columns) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  }

  Real rounded(Real x) const {
    if constexpr (sizeof(Real) == sizeof(double)) return x;
    return static_cast<Real>(round_to(type_, static_cast<float>(x)));
  }

  template <typename A, typename B>
  DFA_NOT_INSTRUMENTED static Real dot(const A* a, const B* b, int n) {
    Real sum = 0;
    for (int i = 0; i < n; ++i) sum += static_cast<Real>(a[i]) * static_cast<Real>(b[i]);
    return sum;
  }

  void row(int i, const std::vector<float>& q, const std::vector<float>& k,
           const std::vector<float>& v, const std::vector<float>& d_o) {
    const int begin = static_cast<int>(s_.mask.key_begin(i, s_.sq, s_.sk));
    const int end = static_cast<int>(s_.mask.key_end(i, s_.sq, s_.sk));
    lse[at(i, 1)] = -std::numeric_limits<Real>::infinity();
    if (begin >= end) return;

    const Real scale = static_cast<Real>(s_.scale);
    Values x(size(end - begin, 1)), p(x.size());
    Real high = -std::numeric_limits<Real>::infinity(), sum = 0;
    for (int j = begin; j < end; ++j) {
      Real& score = x[at(j - begin, 1)];
      score = scale * rounded(dot(&q[at(i, s_.d)], &k[at(j, s_.d)], s_.d));
      high = score > high ? score : high;
    }
    for (std::size_t j = 0; j < p.size(); ++j) sum += p[j] = std::exp(x[j] - high);
    lse[at(i, 1)] = high + std::log(sum);
    for (Real& share : p) share = rounded(share / sum);

    Real* out = &o[at(i, s_.dv)];
    for (int j = begin; j < end; ++j) {
      add(out, p[at(j - begin, 1)], &v[at(j, s_.dv)], s_.dv);
    }
    const float* grad = &d_o[at(i, s_.dv)];
    // From the stored o and lse, whose rounding any backward inherits.
    Values stored(out, out + s_.dv);
    for (Real& element : stored) element = rounded(element);
    const Real delta = dot(grad, stored.data(), s_.dv);
    for (int j = begin; j < end; ++j) {
      const Real pj = rounded(std::exp(x[at(j - begin, 1)] - lse[at(i, 1)]));
      const Real dp = rounded(dot(grad, &v[at(j, s_.dv)], s_.dv));
      largest_dp = std::max(largest_dp, std::abs(dp));
      const Real ds = rounded(pj * (dp - delta));
      add(&dv[at(j, s_.dv)], pj, grad, s_.dv);
      add(&dk[at(j, s_.d)], scale * ds, &q[at(i, s_.d)], s_.d);
      add(&dq[at(i, s_.d)], scale * ds, &k[at(j, s_.d)], s_.d);
    }
  }

  DFA_NOT_INSTRUMENTED static void add(Real* out, Real factor, const float* in, int n) {
    for (int c = 0; c < n; ++c) out[c] += factor * static_cast<Real>(in[c]);
  }

  static std::size_t at(int row, int columns) { return size(row, columns); }

  const PlainShape s_;
  const DType type_;
};

}  // namespace dfa::test
