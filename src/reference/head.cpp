#include "reference/head.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/element.h"
#include "base/instrumented.h"
#include "base/wider_vectors.h"
#include "reference/tensor_core_sums.h"
#include "spec/descale.h"

namespace dfa {
namespace {

// factors: of its rows; none: 1.
template <typename Real>
Matrix<Real> load(const void* base, DType type, const Strides& strides, std::int64_t b,
                  std::int64_t h, std::int64_t rows, std::int64_t cols,
                  const std::vector<float>& factors = {}) {
  Matrix<Real> matrix(rows, cols);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t start = b * strides.batch + h * strides.head + i * strides.row;
    const float factor = factors.empty() ? 1 : factors[static_cast<std::size_t>(i)];
    for (std::int64_t x = 0; x < cols; ++x) {
      // tf32 products read their operands with 10 mantissa bits; every other type is stored
      // rounded.
      const float value = load_element(base, type, start + x);
      matrix.row(i)[x] = static_cast<Real>(type == DType::tf32 ? round_to(type, value) : value) *
                         static_cast<Real>(factor);
    }
  }
  return matrix;
}

// Absolute values, where the truth is computed.
template <typename Real>
Matrix<Real> sizes(const Matrix<Real>& from) {
  if (!std::is_same_v<Real, double>) return {};
  Matrix<Real> to = from;
  for (Real& value : to.data) value = std::fabs(value);
  return to;
}

// By bands of rows, so that what is written of a column is a cache line or two.
template <typename Real>
Matrix<Real> transpose(const Matrix<Real>& from) {
  constexpr std::int64_t kBand = 16;
  Matrix<Real> to(from.cols, from.rows);
  for (std::int64_t first = 0; first < from.rows; first += kBand) {
    const std::int64_t end = std::min(first + kBand, from.rows);
    for (std::int64_t x = 0; x < from.cols; ++x) {
      for (std::int64_t i = first; i < end; ++i) to.row(x)[i] = from.row(i)[x];
    }
  }
  return to;
}

DFA_NOT_INSTRUMENTED DFA_WIDER_VECTORS void add_unseen(double* to, double a, const double* from,
                                                       std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) to[j] += a * from[j];
}

DFA_NOT_INSTRUMENTED DFA_WIDER_VECTORS void add_unseen(float* to, float a, const float* from,
                                                       std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) to[j] += a * from[j];
}

// to[j] += a * from[j]; the last one in sight of sanitizers, which find a range that is too long.
template <typename Real>
void add_scaled(Real* to, Real a, const Real* from, std::int64_t count) {
  if (count == 0) return;
  const std::int64_t last = count - 1;
  add_unseen(to, a, from, last);
  to[last] += a * from[last];
}

// row · columns[begin, end), given the columns' transpose: the inner loop runs over contiguous
// keys.
template <typename Real>
std::vector<Real> products(const Real* row, const Matrix<Real>& transposed, std::int64_t begin,
                           std::int64_t end, SumOrder order) {
  std::vector<Real> sums(static_cast<std::size_t>(end - begin), Real(0));
  for (std::int64_t n = 0; n < transposed.rows; ++n) {
    const std::int64_t x = order.term(n, transposed.rows);
    add_scaled(sums.data(), row[x], transposed.row(x) + begin, end - begin);
  }
  return sums;
}

// sum += weights · rows of `seen`
template <typename Real>
void add_weighted(std::vector<Real>& sum, const std::vector<Real>& weights,
                  const Matrix<Real>& rows, const Seen& seen, SumOrder order) {
  sum.resize(static_cast<std::size_t>(rows.cols), Real(0));
  const std::int64_t count = std::ssize(weights);
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t j = order.term(n, count);
    if (!seen.shows(j)) continue;
    add_scaled(sum.data(), weights[static_cast<std::size_t>(j)], rows.row(seen.begin + j),
               rows.cols);
  }
}

template <typename Real>
std::vector<Real> weighted_sum(const std::vector<Real>& weights, const Matrix<Real>& rows,
                               const Seen& seen, SumOrder order) {
  std::vector<Real> sum;
  add_weighted(sum, weights, rows, seen, order);
  return sum;
}

}  // namespace

// sum of |weights| · sizes of `seen`; nothing where there are no sizes.
template <typename Real>
std::vector<Real> terms_of(std::vector<Real> weights, const Matrix<Real>& sizes, const Seen& seen,
                           SumOrder order) {
  if (sizes.rows == 0) return {};
  for (Real& weight : weights) weight = std::fabs(weight);
  return weighted_sum(weights, sizes, seen, order);
}

bool is_visible(const Problem& p, std::int64_t i, std::int64_t j) {
  const std::int64_t own = i + p.sk - p.sq, after = j - own;  // the query's own position
  if (j < p.mask.prefix) return true;
  // Two positions are of one chunk when no multiple of its length lies above one and up to the
  // other.
  if (const std::int64_t n = p.mask.chunk; n > 0) {
    const std::int64_t into = (own % n + n) % n;  // how far the query is in its chunk
    if (after < -into || after >= n - into) return false;
  }
  return (p.mask.left < 0 || -after <= p.mask.left) && (p.mask.right < 0 || after <= p.mask.right);
}

namespace {

// Of rows of a tensor in e4m3; none of others.
std::vector<float> row_factors(const Problem& p, DType type, const Descale& descale,
                               std::int64_t rows, std::int64_t b, std::int64_t hk) {
  std::vector<float> all;
  for (std::int64_t i = 0; type == DType::e4m3 && i < rows; ++i) {
    all.push_back(descale_of(descale, b, hk, p.descale_rows > 0 ? i / p.descale_rows : 0));
  }
  return all;
}

}  // namespace

template <typename Real>
KeyHead<Real>::KeyHead(const Problem& p, const void* k_base, const void* v_base, std::int64_t b,
                       std::int64_t hk, bool gradients, const Descales& descales) {
  const DType type = p.kv_dtype();
  std::vector<float> of_k = row_factors(p, type, descales.k, p.sk, b, hk);
  if (in_8_bits<Real>(p)) factors.swap(of_k);
  k = load<Real>(k_base, type, p.k(), b, hk, p.sk, p.d, of_k);
  v = load<Real>(v_base, type, p.v(), b, hk, p.sk, p.dv,
                 row_factors(p, type, descales.v, p.sk, b, hk));
  k_t = transpose(k);
  v_size = sizes(v);
  if (!gradients) return;
  v_t = transpose(v);
  k_size = sizes(k);
}

template <typename Real>
Head<Real>::Head(const Problem& problem, const void* q, const void* k, const void* v,
                 const void* d_o, std::int64_t b, std::int64_t hq, int order, const Logits& logits,
                 const BlockLists& blocks, const Descales& descales, Keys keys)
    : p_(problem),
      scale_(static_cast<Real>(problem.softmax_scale())),
      logits_(problem, logits, b, hq),
      dropout_(problem, logits, b, hq),
      blocks_(problem, blocks, b, hq),
      order_{order},
      keys_(std::move(keys)) {
  const std::int64_t hk = hq / (p_.hq / p_.hk);
  const bool gradients = d_o != nullptr;
  if (keys_ == nullptr) {
    keys_ = std::make_shared<const KeyHead<Real>>(p_, k, v, b, hk, gradients, descales);
  }
  std::vector<float> of_q = row_factors(p_, p_.dtype, descales.q, p_.sq, b, hk);
  if (in_8_bits<Real>(p_)) q_factors_.swap(of_q);
  q_ = load<Real>(q, p_.dtype, p_.q(), b, hq, p_.sq, p_.d, of_q);
  if (!gradients) return;
  d_o_ = load<Real>(d_o, p_.dtype, p_.o(), b, hq, p_.sq, p_.dv);
  q_t_ = transpose(q_);
  d_o_t_ = transpose(d_o_);
  q_size_ = sizes(q_), d_o_size_ = sizes(d_o_);
}

template <typename Real>
Real Head<Real>::round(Real value) const {
  if constexpr (std::is_same_v<Real, double>) {
    return value;
  } else {
    return round_to(p_.dtype, value);
  }
}

template <typename Real>
Seen Head<Real>::keys_of(std::int64_t i) const {
  return seen_of(p_.sk, [&](std::int64_t j) { return sees(i, j); });
}

template <typename Real>
Seen Head<Real>::queries_of(std::int64_t j) const {
  return seen_of(p_.sq, [&](std::int64_t i) { return sees(i, j); });
}

template <typename Real>
std::vector<Real> Head<Real>::score_products(std::int64_t i, const Seen& keys) const {
  if constexpr (std::is_same_v<Real, float>) {
    if (in_8_bits<Real>(p_)) {
      std::vector<float> s = tensor_core_sums(q_.row(i), keys_->k_t, keys.begin, keys.end, order_);
      const float of_q = q_factors_[static_cast<std::size_t>(i)];
      for (std::size_t j = 0; j < s.size(); ++j) {
        s[j] *= of_q * keys_->factors[static_cast<std::size_t>(keys.begin) + j];
      }
      return s;
    }
  }
  return products(q_.row(i), keys_->k_t, keys.begin, keys.end, order_);
}

template <typename Real>
std::vector<Real> Head<Real>::plain_scores(std::int64_t i, const Seen& keys) const {
  std::vector<Real> s = score_products(i, keys);
  for (std::int64_t n = 0; n < std::ssize(s); ++n) {
    Real& value = s[static_cast<std::size_t>(n)];
    value = keys.shows(n) ? logits_.of(value, i, keys.begin + n)
                          : -std::numeric_limits<Real>::infinity();
  }
  return s;
}

template <typename Real>
bool is_minus_infinity(Real value) {
  return value == -std::numeric_limits<Real>::infinity();
}

// Do biases hide every key, and is there no sink?
template <typename Real>
bool sees_nothing(const std::vector<Real>& logits, Real sink) {
  return is_minus_infinity(sink) && std::ranges::all_of(logits, is_minus_infinity<Real>);
}

// Of a logit in a row of this lse; 0 in rows that see nothing.
template <typename Real>
Real probability(Real logit, Real lse) {
  return is_minus_infinity(logit) ? Real(0) : std::exp(logit - lse);
}

template <typename Real>
Real log_sum_exp(const std::vector<Real>& s, Real sink) {
  if (sees_nothing(s, sink)) return sink;
  const Real maximum = std::max(sink, *std::max_element(s.begin(), s.end()));
  Real sum = std::exp(sink - maximum);
  for (const Real value : s) sum += std::exp(value - maximum);
  return maximum + std::log(sum);
}

template <typename Real>
Real Head<Real>::softmax(std::vector<Real>& s) const {
  if (sees_nothing(s, logits_.sink())) {
    std::fill(s.begin(), s.end(), Real(0));
    return logits_.sink();
  }
  const Real maximum = std::max(logits_.sink(), *std::max_element(s.begin(), s.end()));
  Real sum = std::exp(logits_.sink() - maximum);
  for (Real& value : s) {
    value = std::exp(value - maximum);
    sum += value;
  }
  for (Real& value : s) value = round(value / sum);
  return maximum + std::log(sum);
}

template <typename Real>
Real Head<Real>::softmax_of_rounded(std::vector<Real>& s) const {
  constexpr Real kFactor = 256;
  const Real sink = logits_.sink();
  if (sees_nothing(s, Real(-INFINITY))) {
    std::fill(s.begin(), s.end(), Real(0));
    return sink;
  }
  // Of the scores alone: a large sink would leave small numbers to be rounded.
  const Real maximum = *std::max_element(s.begin(), s.end());
  Real sum = 0;
  for (Real& value : s) {
    value = std::exp(value - maximum);
    sum += value;
    value = round(kFactor * value) / kFactor;
  }
  const Real of_scores = maximum + std::log(sum);
  const Real lse = is_minus_infinity(sink) ? of_scores : log_sum_exp<Real>({of_scores}, sink);
  for (Real& value : s) value *= std::exp(of_scores - lse) / sum;
  return lse;
}

template <typename Real>
typename Head<Real>::Row Head<Real>::forward(std::int64_t i) const {
  const Seen keys = keys_of(i);
  if (keys.begin == keys.end) {
    const std::vector<Real> zeros(static_cast<std::size_t>(p_.dv), Real(0));
    return {zeros, zeros, logits_.sink(), logits_.sink()};
  }
  std::vector<Real> s = plain_scores(i, keys);
  const bool rounds = std::is_same_v<Real, float> && bytes_of(p_.dtype) == 2;
  const Real plain = rounds ? log_sum_exp(s, logits_.sink()) : Real(0);
  if (!in_8_bits<Real>(p_)) std::ranges::for_each(s, [&](Real& value) { value = round(value); });
  const Real lse = in_8_bits<Real>(p_) ? softmax_of_rounded(s) : softmax(s);
  for (std::size_t n = 0; n < s.size(); ++n) {
    s[n] *= dropout_.of(i, keys.begin + static_cast<std::int64_t>(n));
    if (!in_8_bits<Real>(p_)) s[n] = round(s[n]);
  }
  return {weighted_sum(s, keys_->v, keys, order_), terms_of(s, keys_->v_size, keys, order_), lse,
          rounds ? plain : lse};
}

template <typename Real>
Real Head<Real>::delta(std::int64_t i, const std::vector<Real>& o) const {
  Real sum = 0;
  for (std::int64_t n = 0; n < p_.dv; ++n) {
    const std::int64_t x = order_.term(n, p_.dv);
    sum += d_o_.row(i)[x] * round(o[static_cast<std::size_t>(x)]);
  }
  return sum;
}

// What ds is before it cancels: p (|dp| + |delta|).
template <typename Real>
Real ds_terms(Real p, Real dp, Real delta) {
  return p * (std::fabs(dp) + std::fabs(delta));
}

template <typename Real>
typename Head<Real>::Gradient Head<Real>::dq(std::int64_t i, Real lse, Real delta) const {
  const Seen keys = keys_of(i);
  const std::vector<Real> zeros(static_cast<std::size_t>(p_.d), Real(0));
  if (keys.begin == keys.end) return {zeros, zeros};
  const std::vector<Real> plain = products(q_.row(i), keys_->k_t, keys.begin, keys.end, order_);
  std::vector<Real> ds = products(d_o_.row(i), keys_->v_t, keys.begin, keys.end, order_),
                    terms = ds;
  for (std::size_t n = 0; n < ds.size(); ++n) {
    if (!keys.shows(static_cast<std::int64_t>(n))) continue;
    const std::int64_t j = keys.begin + static_cast<std::int64_t>(n);
    const Real s = round(logits_.of(plain[n], i, j));
    const Real p = round(probability(s, lse)), derivative = logits_.derivative(plain[n], i, j);
    ds[n] = round(ds[n] * dropout_.of(i, j));
    terms[n] = ds_terms(p, ds[n], delta) * std::fabs(derivative);
    ds[n] = round(p * (ds[n] - delta) * derivative);
  }
  Gradient gradient = {weighted_sum(ds, keys_->k, keys, order_),
                       terms_of(terms, keys_->k_size, keys, order_)};
  for (Real& value : gradient.dq) value *= scale_;
  for (Real& value : gradient.terms) value *= std::fabs(scale_);
  return gradient;
}

template <typename Real>
typename Head<Real>::LogitGradients Head<Real>::logit_gradients(std::int64_t i, Real lse,
                                                                Real delta) const {
  const Seen keys = keys_of(i);
  if (keys.begin == keys.end) return {};
  const std::vector<Real> plain = products(q_.row(i), keys_->k_t, keys.begin, keys.end, order_);
  LogitGradients row{
      keys.begin, products(d_o_.row(i), keys_->v_t, keys.begin, keys.end, order_), {}};
  row.terms = row.ds;
  for (std::size_t n = 0; n < row.ds.size(); ++n) {
    if (!keys.shows(static_cast<std::int64_t>(n))) {
      row.ds[n] = row.terms[n] = 0;
      continue;
    }
    const std::int64_t j = keys.begin + static_cast<std::int64_t>(n);
    const Real s = round(logits_.of(plain[n], i, j));
    const Real p = round(probability(s, lse));
    row.ds[n] = round(row.ds[n] * dropout_.of(i, j));
    row.terms[n] = ds_terms(p, row.ds[n], delta);
    row.ds[n] = round(p * (row.ds[n] - delta));
  }
  return row;
}

template <typename Real>
void Head<Real>::add_key_gradient(std::int64_t j, const std::vector<Real>& lse,
                                  const std::vector<Real>& delta, KeyGradient& sum) const {
  const Seen rows = queries_of(j);
  std::vector<Real> probabilities = products(keys_->k.row(j), q_t_, rows.begin, rows.end, order_);
  std::vector<Real> ds = products(keys_->v.row(j), d_o_t_, rows.begin, rows.end, order_),
                    terms = ds;
  for (std::size_t i = 0; i < ds.size(); ++i) {
    if (!rows.shows(static_cast<std::int64_t>(i))) continue;
    const std::size_t row = static_cast<std::size_t>(rows.begin) + i;
    const auto query = static_cast<std::int64_t>(row);
    const Real derivative = logits_.derivative(probabilities[i], query, j);
    const Real s = round(logits_.of(probabilities[i], query, j));
    const Real kept = dropout_.of(static_cast<std::int64_t>(row), j);
    probabilities[i] = round(probability(s, lse[row]));
    ds[i] = round(ds[i] * kept);
    terms[i] = ds_terms(probabilities[i], ds[i], delta[row]) * std::fabs(derivative);
    ds[i] = round(probabilities[i] * (ds[i] - delta[row]) * derivative);
    probabilities[i] = round(probabilities[i] * kept);
  }
  add_weighted(sum.dk, ds, q_, rows, order_);
  add_weighted(sum.dv, probabilities, d_o_, rows, order_);
  if (q_size_.rows == 0) return;
  add_weighted(sum.dk_terms, terms, q_size_, rows, order_);
  add_weighted(sum.dv_terms, probabilities, d_o_size_, rows, order_);
}

template struct KeyHead<double>;
template struct KeyHead<float>;
template class Head<double>;
template class Head<float>;

}  // namespace dfa
