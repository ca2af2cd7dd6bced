#include "reference/check.h"

#include <fmt/format.h>

#include "base/element.h"
#include "reference/comparer.h"
#include "reference/finite.h"
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

// Marks a tensor as wrong where a scan of all of it found something.
void blame(TensorCheck& check, const std::string& found) {
  if (found.empty()) return;
  check.ok = false;
  check.detail = found;
}

// o and lse of the rows of a sample.
class ForwardRows {
 public:
  ForwardRows(const Problem& p, const void* o, const float* lse)
      : p_(p), o_(o), lse_(lse), o_check_("o", p.dtype) {}

  void add(const Head<double>& truth, const Head<float>& naive,
           const std::vector<std::int64_t>& rows, std::int64_t b, std::int64_t h) {
    for (const std::int64_t i : rows) {
      const auto right = truth.forward(i);
      add_row(o_check_, o_, p_.dtype, p_.o(), b, h, i, right.o, naive.forward(i).o);
      if (lse_ != nullptr) lse_check_.add(lse_[(b * p_.hq + h) * p_.sq + i], right.lse, b, h, i);
    }
  }

  // scan: also look at every element that was not compared.
  std::vector<TensorCheck> finish(bool scan) {
    std::vector<TensorCheck> tensors{o_check_.finish()};
    if (scan) {
      const TensorView o{o_, p_.o(), p_.hq, p_.sq, p_.dv};
      blame(tensors[0], first_non_finite(p_, o, Infinity::wrong));
    }
    if (lse_ == nullptr) return tensors;
    tensors.push_back(lse_check_.finish());
    if (scan) blame(tensors[1], first_non_finite_lse(p_, lse_));
    return tensors;
  }

 private:
  Problem p_;
  const void* o_;
  const float* lse_;
  Comparer o_check_;
  LseComparer lse_check_;
};

// A gradient's result; an fp16 gradient may overflow by right.
TensorCheck finish_gradient(Comparer& comparer, const Problem& p, const TensorView& tensor,
                            bool scan) {
  TensorCheck check = comparer.finish();
  if (scan) {
    const Infinity infinity = p.dtype == DType::fp16 ? Infinity::may_be_right : Infinity::wrong;
    blame(check, first_non_finite(p, tensor, infinity));
  }
  return check;
}

// lse and delta of every row of a head: calculated when the check is complete, else the ones that
// the backward under test was given, whose sampled rows are then checked too.
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
  ForwardRows rows(p, args.o, args.lse);
  for (const auto [b, h] : sample.heads) {
    const Head<double> truth(p, args.q, args.k, args.v, nullptr, b, h);
    const Head<float> naive(p, args.q, args.k, args.v, nullptr, b, h);
    rows.add(truth, naive, sample.rows, b, h);
  }
  const bool scan = !sample.complete && inputs_are_finite(p, args.q, args.k, args.v, nullptr);
  return report_of(rows.finish(scan), !sample.complete);
}

CheckReport check_backward(const Problem& p, const BackwardArgs& args,
                           const CheckOptions& options) {
  const Sample sample = sample_backward(p, options);
  const std::int64_t group = p.hq / p.hk;
  ForwardRows given(p, args.o, args.lse);
  Comparer dq("dq", p.dtype), dk("dk", p.dtype), dv("dv", p.dtype);
  for (const auto [b, hk] : sample.heads) {
    KeyGradients<double> right(sample.keys.size());
    KeyGradients<float> rough(sample.keys.size());
    for (std::int64_t hq = hk * group; hq < (hk + 1) * group; ++hq) {
      const Head<double> truth(p, args.q, args.k, args.v, args.d_o, b, hq);
      const Head<float> naive(p, args.q, args.k, args.v, args.d_o, b, hq);
      if (!sample.complete) given.add(truth, naive, sample.rows, b, hq);
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
  const bool scan = !sample.complete && inputs_are_finite(p, args.q, args.k, args.v, args.d_o);
  std::vector<TensorCheck> tensors;
  if (!sample.complete) tensors = given.finish(scan);
  tensors.push_back(finish_gradient(dq, p, {args.dq, p.q(), p.hq, p.sq, p.d}, scan));
  tensors.push_back(finish_gradient(dk, p, {args.dk, p.k(), p.hk, p.sk, p.d}, scan));
  tensors.push_back(finish_gradient(dv, p, {args.dv, p.v(), p.hk, p.sk, p.dv}, scan));
  return report_of(std::move(tensors), !sample.complete);
}

}  // namespace dfa
