#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "base/float16.h"
#include "cpu/amx_head.h"

// Attention of one query head in fp64, for the test of the AMX engine. With `rounded`, every tensor
// that plain bf16 attention would store is rounded: the ruler's naive result.
namespace dfa::cpu {

using Matrix = std::vector<double>;

struct Truth {
  Matrix o, lse, dq, dk, dv;  // dk and dv of this query head alone
};

inline double rounded_to_bf16(double x) { return to_float(to_bf16(static_cast<float>(x))); }

class TrueHead {
 public:
  TrueHead(const HeadShape& shape, bool rounded) : s_(shape), rounded_(rounded) {}

  Truth run(const HeadTensors& t, int head) const {
    const std::int64_t q = head * s_.sq * s_.q_row, o = head * s_.sq * s_.o_row;
    Truth truth;
    truth.o.assign(count(s_.sq, s_.dv), 0);
    truth.lse.assign(count(s_.sq, 1), -std::numeric_limits<double>::infinity());
    truth.dq.assign(count(s_.sq, s_.d), 0);
    truth.dk.assign(count(s_.sk, s_.d), 0);
    truth.dv.assign(count(s_.sk, s_.dv), 0);
    for (std::int64_t i = 0; i < s_.sq; ++i) {
      const std::int64_t begin = s_.mask.key_begin(i, s_.sq, s_.sk);
      const std::int64_t end = s_.mask.key_end(i, s_.sq, s_.sk);
      if (begin < end) row(t, q + i * s_.q_row, o + i * s_.o_row, i, begin, end, truth);
    }
    for (double& x : truth.dq) x *= s_.scale;
    for (double& x : truth.dk) x *= s_.scale;
    return truth;
  }

 private:
  static std::size_t count(std::int64_t rows, std::int64_t columns) {
    return static_cast<std::size_t>(rows * columns);
  }
  static double value(const std::vector<std::uint16_t>& from, std::int64_t at) {
    return to_float(bf16{from[static_cast<std::size_t>(at)]});
  }
  double store(double x) const { return rounded_ ? rounded_to_bf16(x) : x; }

  void row(const HeadTensors& t, std::int64_t q, std::int64_t o, std::int64_t i, std::int64_t begin,
           std::int64_t end, Truth& truth) const {
    Matrix p(count(end - begin, 1)), dp(p.size());
    double most = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
    for (std::int64_t j = begin; j < end; ++j) {
      double s = 0, product = 0;
      for (int c = 0; c < s_.d; ++c) s += value(t.q, q + c) * value(t.k, j * s_.k_row + c);
      for (int c = 0; c < s_.dv; ++c) product += value(t.d_o, o + c) * value(t.v, j * s_.v_row + c);
      p[count(j - begin, 1)] = store(s * s_.scale);
      dp[count(j - begin, 1)] = store(product);
      most = std::fmax(most, p[count(j - begin, 1)]);
    }
    for (double& x : p) sum += x = std::exp(x - most);
    truth.lse[count(i, 1)] = most + std::log(sum);
    for (double& x : p) x = store(x / sum);
    for (std::size_t j = 0; j < p.size(); ++j) delta += p[j] * dp[j];
    for (std::int64_t j = begin; j < end; ++j) {
      const double w = p[count(j - begin, 1)];
      const double ds = store(w * (dp[count(j - begin, 1)] - delta));
      for (int c = 0; c < s_.dv; ++c) {
        truth.o[count(i * s_.dv + c, 1)] += w * value(t.v, j * s_.v_row + c);
        truth.dv[count(j * s_.dv + c, 1)] += w * value(t.d_o, o + c);
      }
      for (int c = 0; c < s_.d; ++c) {
        truth.dq[count(i * s_.d + c, 1)] += ds * value(t.k, j * s_.k_row + c);
        truth.dk[count(j * s_.d + c, 1)] += ds * value(t.q, q + c);
      }
    }
  }

  HeadShape s_;
  bool rounded_;
};

}  // namespace dfa::cpu
