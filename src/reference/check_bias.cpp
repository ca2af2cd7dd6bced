#include "reference/check_bias.h"

#include <algorithm>
#include <numeric>

#include "base/element.h"
#include "reference/comparer.h"
#include "reference/head.h"
#include "reference/packed.h"
#include "spec/bias.h"

namespace dfa {
namespace {

constexpr int kBiasOrders = 4;  // of the yardstick's sums

using Rows = std::vector<std::int64_t>;

Rows all_rows(const Problem& p) {
  Rows rows(static_cast<std::size_t>(p.sq));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// BiasSums over what the bias is one value for, and over their absolute values.
template <typename Real>
class BiasSums {
 public:
  BiasSums(const Problem& p, const BackwardArgs& args, const Rows& rows, int order)
      : p_(p), steps_(bias_strides(p, {})), rows_(rows), order_(order) {
    const auto count = static_cast<std::size_t>(bias_sizes(p).elements());
    values.assign(count, Real(0));
    terms.assign(count, Real(0));
    if (!p.packed()) {
      for (std::int64_t b = 0; b < p.b; ++b) add(p, args, b, b * steps_.batch);
      return;
    }
    std::int64_t number = 0;
    for (const PackedSequence& one : sequences_of(p, args)) {
      const std::int64_t begin = number++ * steps_.batch;
      if (one.problem.sq > 0 && one.problem.sk > 0) add(one.problem, one.backward, 0, begin);
    }
  }

  std::vector<Real> values, terms;

 private:
  void add(const Problem& one, const BackwardArgs& args, std::int64_t b, std::int64_t begin) {
    Heads<Real> heads(one, args);
    for (std::int64_t h = 0; h < one.hq; ++h) {
      const Head<Real> head = heads.at(b, h, order_);
      for (const std::int64_t i : rows_) {
        if (i < one.sq) add_row(one, args, head, b, h, i, begin + h * steps_.head);
      }
    }
  }

  void add_row(const Problem& one, const BackwardArgs& args, const Head<Real>& head, std::int64_t b,
               std::int64_t h, std::int64_t i, std::int64_t begin) {
    std::vector<Real> o(static_cast<std::size_t>(one.dv));
    const std::int64_t start = b * one.o().batch + h * one.o().head + i * one.o().row;
    for (std::int64_t x = 0; x < one.dv; ++x) {
      o[static_cast<std::size_t>(x)] =
          static_cast<Real>(load_element(args.o, one.dtype, start + x));
    }
    const auto lse = static_cast<Real>(args.lse[(b * one.hq + h) * one.sq + i]);
    const auto row = head.logit_gradients(i, lse, head.delta(i, o));
    for (std::size_t n = 0; n < row.ds.size(); ++n) {
      const std::int64_t key = p_.bias->of_key ? row.begin + static_cast<std::int64_t>(n) : 0;
      const auto at = static_cast<std::size_t>(begin + i * steps_.row + key);
      values[at] += row.ds[n];
      terms[at] += row.terms[n];
    }
  }

  const Problem& p_;
  const Strides steps_;
  const Rows& rows_;
  const int order_;
};

}  // namespace

std::vector<double> bias_gradient(const Problem& p, const BackwardArgs& args) {
  return BiasSums<double>(p, args, all_rows(p), 0).values;
}

TensorCheck check_bias(const Problem& p, const BackwardArgs& args, const Rows& sampled) {
  const Rows rows = p.bias->of_query ? sampled : all_rows(p);
  const BiasSums<double> truth(p, args, rows, 0);
  std::vector<BiasSums<float>> naive;
  for (int order = 0; order < kBiasOrders; ++order) naive.emplace_back(p, args, rows, order);
  const BiasSizes sizes = bias_sizes(p);
  Comparer comparer("dbias", DType::fp32, p.dv + p.b * p.hq * p.sq * p.sk / sizes.elements(),
                    false);
  const Strides strides = bias_strides(p, args.d_bias_strides);
  for (std::int64_t at = 0; at < sizes.elements(); ++at) {
    const std::int64_t j = at % sizes.sk, i = at / sizes.sk % sizes.sq;
    const std::int64_t h = at / (sizes.sk * sizes.sq) % sizes.hq;
    const std::int64_t b = at / (sizes.sk * sizes.sq * sizes.hq);
    if (p.bias->of_query && std::find(rows.begin(), rows.end(), i) == rows.end()) continue;
    std::vector<float> orders;
    const auto n = static_cast<std::size_t>(at);
    for (const BiasSums<float>& order : naive) orders.push_back(order.values[n]);
    const std::int64_t got = b * strides.batch + h * strides.head + i * strides.row + j;
    comparer.add(args.d_bias[got], truth.values[n], truth.terms[n], orders, b, h, i, j);
  }
  return comparer.finish();
}

}  // namespace dfa
