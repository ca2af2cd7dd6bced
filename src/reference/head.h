#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "dfa/attention.h"
#include "reference/head_dropout.h"
#include "reference/head_logits.h"
#include "reference/seen.h"

namespace dfa {

// A row-major matrix.
template <typename Real>
struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<Real> data;

  Matrix() = default;
  Matrix(std::int64_t r, std::int64_t c)
      : rows(r), cols(c), data(static_cast<std::size_t>(r * c), Real(0)) {}
  Real* row(std::int64_t i) { return data.data() + i * cols; }
  const Real* row(std::int64_t i) const { return data.data() + i * cols; }
};

// Does query i see key j by the problem's mask? The definition, in the reference's own words: were
// it shared with the engines, a fault in it would pass every check.
bool is_visible(const Problem& problem, std::int64_t i, std::int64_t j);

inline constexpr int kMostSumOrders = 64;

// An order of a sum's terms: 0, 2, 4, … start further and further into the terms, wrapping round;
// 1, 3, 5, … are the same ones backwards.
struct SumOrder {
  int number = 0;

  std::int64_t term(std::int64_t n, std::int64_t count) const {
    const std::int64_t at = (n + number / 2 * (2 * count / kMostSumOrders + 1)) % count;
    return number % 2 == 0 ? at : count - 1 - at;
  }
};

// A naive calculation in e4m3? Its scores are of numbers as they are stored, and take the factors
// of q and k afterwards, as a kernel's do.
template <typename Real>
bool in_8_bits(const Problem& p) {
  return std::is_same_v<Real, float> && p.dtype == DType::e4m3;
}

// A head of keys, which all of its query heads and orders of summation share. What gradients alone
// need is empty where none are asked for, sizes where Real is not double.
template <typename Real>
struct KeyHead {
  // k and v: host pointers as in the public API.
  KeyHead(const Problem& problem, const void* k, const void* v, std::int64_t b, std::int64_t hk,
          bool gradients, const Descales& descales = {});

  std::vector<float> factors;  // of rows of k, for scores in 8 bits
  Matrix<Real> k, v, k_t, v_t;
  Matrix<Real> k_size, v_size;  // absolute values
};

// Attention of one query head, written as its definition. With Real = double it is the truth:
// everything in fp64 from the stored (already rounded) inputs. With Real = float it is the
// yardstick: the same steps done naively, with S, P, dP and dS rounded to the problem's element
// type. In e4m3 S stays fp32, as every kernel of 8 bits keeps it, and P is rounded before it is
// divided by its sum, 2^8 times itself, so that its largest, 1, becomes 256 of the 448 that there
// are (docs/design/0033-fp8.md).
template <typename Real>
class Head {
 public:
  using Keys = std::shared_ptr<const KeyHead<Real>>;

  // Host pointers as in the public API; d_o may be null when no gradient is asked for. `order`
  // names one of many equally good orders of every sum. keys: those of this head, if they are there
  // already.
  Head(const Problem& problem, const void* q, const void* k, const void* v, const void* d_o,
       std::int64_t b, std::int64_t hq, int order = 0, const Logits& logits = {},
       const BlockLists& blocks = {}, const Descales& descales = {}, Keys keys = nullptr);

  // One row of o (dv values) and its log-sum-exp; zeros and the sink, -inf without one, when the
  // row sees no key. In fp64 `terms` of a result are the sums of the absolute values of what it is
  // the sum of.
  struct Row {
    std::vector<Real> o, terms;
    Real lse;
    Real plain_lse;  // of scores that are not rounded to the element type, as lse is stored in fp32
  };
  Row forward(std::int64_t i) const;

  // The dot product of do and o of a row, with o as it would be stored.
  Real delta(std::int64_t i, const std::vector<Real>& o) const;

  // One row of dq. A backward is given lse and o, so its probabilities come from lse and not from a
  // softmax of their own: what rounding those to fp32 costs, no backward can avoid.
  struct Gradient {
    std::vector<Real> dq, terms;
  };
  Gradient dq(std::int64_t i, Real lse, Real delta) const;

  // The gradients of a row's logits, what dq is before score_mod, softcap and k join it.
  struct LogitGradients {
    std::int64_t begin = 0;  // the key of the first
    std::vector<Real> ds, terms;
  };
  LogitGradients logit_gradients(std::int64_t i, Real lse, Real delta) const;

  // A row's share of the sink's gradient, given its lse and delta. A sink of -inf is none, also
  // where lse is -inf for want of keys.
  Real d_sink(Real lse, Real delta) const {
    const Real sink = logits_.sink();
    return std::isinf(sink) && sink < 0 ? Real{0} : -std::exp(sink - lse) * delta;
  }

  // dk and dv of a key: one sum over the rows of all query heads of its group.
  struct KeyGradient {
    std::vector<Real> dk, dv;  // dk yet to be multiplied by the scale, and so dk_terms
    std::vector<Real> dk_terms, dv_terms;
  };
  // Adds this query head's rows to those of key j, given every row's lse and delta. A new sum may
  // be empty.
  void add_key_gradient(std::int64_t j, const std::vector<Real>& lse,
                        const std::vector<Real>& delta, KeyGradient& sum) const;

 private:
  Real round(Real value) const;
  bool sees(std::int64_t i, std::int64_t j) const {
    return is_visible(p_, i, j) && blocks_.sees(i, j) && logits_.sees(i, j);
  }
  Seen keys_of(std::int64_t i) const;
  Seen queries_of(std::int64_t j) const;
  // Of row i of q and the keys, with the factors of both.
  std::vector<Real> score_products(std::int64_t i, const Seen& keys) const;
  // Logits of row i and the keys, before S is rounded; -inf where one is hidden.
  std::vector<Real> plain_scores(std::int64_t i, const Seen& keys) const;
  // Turns scores into probabilities, returns their log-sum-exp, the sink's among them.
  Real softmax(std::vector<Real>& s) const;
  // The same where P is rounded before it is divided by its sum.
  Real softmax_of_rounded(std::vector<Real>& s) const;

  Problem p_;
  Real scale_;
  std::vector<float> q_factors_;  // of rows, for scores in 8 bits
  HeadLogits<Real> logits_;
  HeadDropout<Real> dropout_;
  SeenBlocks blocks_;
  SumOrder order_;
  Keys keys_;
  Matrix<Real> q_, d_o_;
  Matrix<Real> q_t_, d_o_t_;
  Matrix<Real> q_size_, d_o_size_;  // absolute values, in fp64 alone
};

// Query heads of a problem's tensors, one after another; those of one head of keys share it.
template <typename Real>
class Heads {
 public:
  Heads(const Problem& p, const ForwardArgs& a)
      : p_(p),
        q_(a.q),
        k_(a.k),
        v_(a.v),
        logits_(a.logits),
        blocks_(a.blocks),
        descales_(a.descales) {}
  Heads(const Problem& p, const BackwardArgs& a)
      : p_(p), q_(a.q), k_(a.k), v_(a.v), d_o_(a.d_o), logits_(a.logits), blocks_(a.blocks) {}

  Head<Real> at(std::int64_t b, std::int64_t hq, int order = 0) {
    const std::int64_t hk = hq / (p_.hq / p_.hk);
    if (keys_ == nullptr || b != b_ || hk != hk_) {
      keys_.reset();  // room for the next
      keys_ = std::make_shared<const KeyHead<Real>>(p_, k_, v_, b, hk, d_o_ != nullptr, descales_);
      b_ = b, hk_ = hk;
    }
    return Head<Real>(p_, q_, k_, v_, d_o_, b, hq, order, logits_, blocks_, descales_, keys_);
  }

 private:
  const Problem& p_;
  const void *q_, *k_, *v_, *d_o_ = nullptr;
  Logits logits_;
  BlockLists blocks_;
  Descales descales_;
  typename Head<Real>::Keys keys_;
  std::int64_t b_ = 0, hk_ = 0;
};

extern template struct KeyHead<double>;
extern template struct KeyHead<float>;
extern template class Head<double>;
extern template class Head<float>;

}  // namespace dfa
