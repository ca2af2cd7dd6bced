#include "reference/check.h"

#include <fmt/format.h>

#include "base/element.h"
#include "reference/comparer.h"
#include "reference/head.h"
#include "reference/sample.h"

namespace dfa {
namespace {

// Compares one row of a tensor.
template <typename Truth, typename Naive>
void add_row(Comparer& comparer, const void* base, DType type, const Strides& strides,
             std::int64_t b, std::int64_t h, std::int64_t s, const Truth& truth,
             const Naive& naive) {
  const std::int64_t start = b * strides.batch + h * strides.head + s * strides.row;
  for (std::size_t x = 0; x < truth.size(); ++x) {
    const auto at = static_cast<std::int64_t>(x);
    comparer.add(load_element(base, type, start + at), truth[x], naive[x], b, h, s, at);
  }
}

// lse and delta of every row of a head: calculated when the check is complete, else the ones that
// the backward under test was given (the forward's check has vouched for those).
template <typename Real>
struct RowSums {
  std::vector<Real> lse, delta;

  RowSums(const Problem& p, const Head<Real>& head, const BackwardArgs& args, std::int64_t b,
          std::int64_t hq, bool complete) {
    const Strides strides = p.o();
    for (std::int64_t i = 0; i < p.sq; ++i) {
      typename Head<Real>::Row row;
      if (complete) {
        row = head.forward(i);
      } else {
        row.lse = static_cast<Real>(args.lse[(b * p.hq + hq) * p.sq + i]);
        const std::int64_t start = b * strides.batch + hq * strides.head + i * strides.row;
        for (std::int64_t x = 0; x < p.dv; ++x) {
          row.o.push_back(static_cast<Real>(load_element(args.o, p.dtype, start + x)));
        }
      }
      lse.push_back(row.lse);
      delta.push_back(head.delta(i, row.o));
    }
  }
};

// Adds one query head's part to the sums over its group.
template <typename Real>
void accumulate(std::vector<Real>& sum, const std::vector<Real>& part) {
  if (sum.empty()) sum.assign(part.size(), Real(0));
  for (std::size_t x = 0; x < part.size(); ++x) sum[x] += part[x];
}

// dk and dv of the sampled keys of one (b, hk), summed over the group's query heads.
template <typename Real>
struct KeyGradients {
  std::vector<std::vector<Real>> dk, dv;

  explicit KeyGradients(std::size_t keys) : dk(keys), dv(keys) {}

  void add(const Head<Real>& head, const RowSums<Real>& sums,
           const std::vector<std::int64_t>& keys) {
    for (std::size_t n = 0; n < keys.size(); ++n) {
      const auto gradient = head.key_gradient(keys[n], sums.lse, sums.delta);
      accumulate(dk[n], gradient.dk);
      accumulate(dv[n], gradient.dv);
    }
  }
};

CheckReport report_of(std::vector<TensorCheck> tensors, bool sampled) {
  CheckReport report{.ok = true, .sampled = sampled, .tensors = std::move(tensors)};
  for (const TensorCheck& tensor : report.tensors) report.ok = report.ok && tensor.ok;
  return report;
}

double ratio(const TensorCheck& tensor) {
  if (tensor.max_error == 0) return tensor.ok ? 0 : 1e300;
  return tensor.bound > 0 ? tensor.max_error / tensor.bound : 1e300;
}

}  // namespace

const TensorCheck& CheckReport::worst() const {
  const TensorCheck* worst = &tensors.front();
  for (const TensorCheck& tensor : tensors) {
    const bool fails_first = worst->ok && !tensor.ok;
    if (fails_first || (worst->ok == tensor.ok && ratio(tensor) > ratio(*worst))) worst = &tensor;
  }
  return *worst;
}

std::string CheckReport::summary() const {
  std::string text;
  for (const TensorCheck& t : tensors) {
    text +=
        fmt::format("{}{:4} {}: max error {:.3g} (bound {:.3g}), mean {:.3g} (bound {:.3g}), {}",
                    text.empty() ? "" : "\n", t.name, t.ok ? "ok" : "WRONG", t.max_error, t.bound,
                    t.mean_error, t.mean_bound, t.detail);
  }
  return text;
}

CheckReport check_forward(const Problem& p, const ForwardArgs& args, const CheckOptions& options) {
  const Sample sample = sample_forward(p, options);
  Comparer o("o", p.dtype);
  LseComparer lse;
  for (const auto [b, h] : sample.heads) {
    const Head<double> truth(p, args.q, args.k, args.v, nullptr, b, h);
    const Head<float> naive(p, args.q, args.k, args.v, nullptr, b, h);
    for (const std::int64_t i : sample.rows) {
      const auto right = truth.forward(i);
      add_row(o, args.o, p.dtype, p.o(), b, h, i, right.o, naive.forward(i).o);
      if (args.lse != nullptr) lse.add(args.lse[(b * p.hq + h) * p.sq + i], right.lse, b, h, i);
    }
  }
  std::vector<TensorCheck> tensors{o.finish()};
  if (args.lse != nullptr) tensors.push_back(lse.finish());
  return report_of(std::move(tensors), !sample.complete);
}

CheckReport check_backward(const Problem& p, const BackwardArgs& args,
                           const CheckOptions& options) {
  const Sample sample = sample_backward(p, options);
  const std::int64_t group = p.hq / p.hk;
  Comparer dq("dq", p.dtype), dk("dk", p.dtype), dv("dv", p.dtype);
  for (const auto [b, hk] : sample.heads) {
    KeyGradients<double> right(sample.keys.size());
    KeyGradients<float> rough(sample.keys.size());
    for (std::int64_t hq = hk * group; hq < (hk + 1) * group; ++hq) {
      const Head<double> truth(p, args.q, args.k, args.v, args.d_o, b, hq);
      const Head<float> naive(p, args.q, args.k, args.v, args.d_o, b, hq);
      const RowSums<double> exact(p, truth, args, b, hq, sample.complete);
      const RowSums<float> rounded(p, naive, args, b, hq, sample.complete);
      for (const std::int64_t i : sample.rows) {
        const auto row = static_cast<std::size_t>(i);
        add_row(dq, args.dq, p.dtype, p.q(), b, hq, i,
                truth.dq(i, exact.lse[row], exact.delta[row]),
                naive.dq(i, rounded.lse[row], rounded.delta[row]));
      }
      right.add(truth, exact, sample.keys);
      rough.add(naive, rounded, sample.keys);
    }
    for (std::size_t n = 0; n < sample.keys.size(); ++n) {
      add_row(dk, args.dk, p.dtype, p.k(), b, hk, sample.keys[n], right.dk[n], rough.dk[n]);
      add_row(dv, args.dv, p.dtype, p.v(), b, hk, sample.keys[n], right.dv[n], rough.dv[n]);
    }
  }
  return report_of({dq.finish(), dk.finish(), dv.finish()}, !sample.complete);
}

}  // namespace dfa
