#include "reference/check_sinks.h"

#include <cmath>
#include <vector>

#include "base/element.h"
#include "reference/comparer.h"
#include "reference/head.h"
#include "reference/packed.h"

namespace dfa {
namespace {

constexpr int kOrders = 8;  // of the yardstick's sums

// One head's sum over the rows of a batch, and over their absolute values.
template <typename Real>
struct Sum {
  Real value = 0, terms = 0;

  void add(const Problem& p, const BackwardArgs& a, std::int64_t b, std::int64_t h, int order) {
    const Head<Real> head(p, a.q, a.k, a.v, a.d_o, b, h, order, a.logits, a.blocks);
    std::vector<Real> o(static_cast<std::size_t>(p.dv));
    for (std::int64_t n = 0; n < p.sq; ++n) {
      const std::int64_t i = SumOrder{order}.term(n, p.sq);
      const std::int64_t start = b * p.o().batch + h * p.o().head + i * p.o().row;
      for (std::int64_t x = 0; x < p.dv; ++x) {
        o[static_cast<std::size_t>(x)] = static_cast<Real>(load_element(a.o, p.dtype, start + x));
      }
      const auto lse = static_cast<Real>(a.lse[(b * p.hq + h) * p.sq + i]);
      const Real share = head.d_sink(lse, head.delta(i, o));
      value += share;
      terms += std::fabs(share);
    }
  }
};

template <typename Real>
Sum<Real> sum_of(const Problem& p, const BackwardArgs& args, std::int64_t h, int order) {
  Sum<Real> sum;
  if (p.packed()) {
    for (const PackedSequence& one : sequences_of(p, args)) {
      sum.add(one.problem, one.backward, 0, h, order);
    }
  } else {
    for (std::int64_t b = 0; b < p.b; ++b) sum.add(p, args, b, h, order);
  }
  return sum;
}

}  // namespace

double sink_gradient(const Problem& p, const BackwardArgs& args, std::int64_t head) {
  return sum_of<double>(p, args, head, 0).value;
}

TensorCheck check_sinks(const Problem& p, const BackwardArgs& args) {
  Comparer comparer("dsinks", DType::fp32, p.b * p.sq + p.dv, false);
  for (std::int64_t h = 0; h < p.hq; ++h) {
    const auto truth = sum_of<double>(p, args, h, 0);
    std::vector<float> orders;
    for (int order = 0; order < kOrders; ++order) {
      orders.push_back(sum_of<float>(p, args, h, order).value);
    }
    comparer.add(args.d_sinks[h], truth.value, truth.terms, orders, 0, h, 0, 0);
  }
  return comparer.finish();
}

}  // namespace dfa
