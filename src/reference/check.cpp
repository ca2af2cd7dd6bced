#include "reference/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/element.h"
#include "reference/check_bias.h"
#include "reference/check_packed.h"
#include "reference/check_sample.h"
#include "reference/check_sinks.h"
#include "reference/comparer.h"
#include "reference/finite.h"
#include "reference/head.h"
#include "reference/truths.h"
#include "spec/flops.h"

namespace dfa {
namespace {

// A mean needs many roundings: over few, one of them decides, and it is the largest error's turn.
bool compare_means(const Problem& p) {
  constexpr double kFewestPairs = 256;
  return static_cast<double>(p.b * p.hq) * visible_pairs(p) >= kFewestPairs;
}

// Roundings that one element goes through, at most: a sum over keys or queries of sums over
// columns.
std::int64_t most_terms(const Problem& p) {
  return std::max(p.sk, p.sq * (p.hq / p.hk)) + p.d + p.dv;
}

// Compares one row of a tensor.
void add_row(Comparer& comparer, const void* base, DType type, const Strides& strides,
             std::int64_t b, std::int64_t h, std::int64_t s, const std::vector<double>& truth,
             const std::vector<double>& terms, const NaiveRows& naive) {
  const std::int64_t start = b * strides.batch + h * strides.head + s * strides.row;
  std::vector<float> orders(naive.size());
  for (std::size_t x = 0; x < truth.size(); ++x) {
    const auto at = static_cast<std::int64_t>(x);
    for (std::size_t n = 0; n < naive.size(); ++n) orders[n] = naive[n][x];
    comparer.add(load_element(base, type, start + at), truth[x], terms[x], orders, b, h, s, at);
  }
}

// Heads of queries, right and by the yardstick.
class CheckedHeads {
 public:
  template <typename Args>
  CheckedHeads(const Problem& p, const Args& args, int orders)
      : orders_(orders), right_(p, args), rough_(p, args) {}

  Head<double> truth(std::int64_t b, std::int64_t h) { return right_.at(b, h); }
  std::vector<Head<float>> yardstick(std::int64_t b, std::int64_t h) {
    std::vector<Head<float>> heads;
    heads.reserve(static_cast<std::size_t>(orders_));
    for (int n = 0; n < orders_; ++n) heads.push_back(rough_.at(b, h, n));
    return heads;
  }

 private:
  int orders_;
  Heads<double> right_;
  Heads<float> rough_;
};

// Marks a tensor as wrong where a scan of all of it found something.
void blame(TensorCheck& check, const std::string& found) {
  if (found.empty()) return;
  check.ok = false;
  check.detail = found;
}

ForwardTruth forward_truth(const Head<double>& truth, const std::vector<Head<float>>& naive,
                           const std::vector<std::int64_t>& rows) {
  ForwardTruth found;
  for (const std::int64_t i : rows) {
    found.rows.push_back(truth.forward(i));
    auto& orders = found.naive.emplace_back();
    for (const Head<float>& order : naive) orders.push_back(order.forward(i));
  }
  return found;
}

// o and lse of the rows of a sample.
class ForwardRows {
 public:
  ForwardRows(const Problem& p, const void* o, const float* lse, const BlockLists& blocks)
      : p_(p),
        o_(o),
        lse_(lse),
        blocks_(blocks),
        o_check_("o", p.dtype, most_terms(p), compare_means(p)) {}

  void add(const ForwardTruth& truth, const std::vector<std::int64_t>& rows, std::int64_t b,
           std::int64_t h) {
    for (std::size_t at = 0; at < rows.size(); ++at) {
      const std::int64_t i = rows[at];
      const auto& right = truth.rows[at];
      NaiveRows rough;
      std::vector<float> rough_lse;
      for (const Head<float>::Row& row : truth.naive[at]) {
        rough.push_back(row.o);
        rough_lse.push_back(row.plain_lse);
      }
      add_row(o_check_, o_, p_.o_dtype(), p_.o(), b, h, i, right.o, right.terms, rough);
      if (lse_ == nullptr) continue;
      lse_check_.add(lse_[(b * p_.hq + h) * p_.sq + i], right.lse, rough_lse, b, h, i);
    }
  }

  // scan: also look at every element that was not compared.
  std::vector<TensorCheck> finish(bool scan) {
    std::vector<TensorCheck> tensors{o_check_.finish()};
    if (scan) {
      const TensorView o{o_, p_.o_dtype(), p_.o(), p_.hq, p_.sq, p_.dv};
      blame(tensors[0], first_non_finite(p_.b, o, Infinity::wrong));
    }
    if (lse_ == nullptr) return tensors;
    tensors.push_back(lse_check_.finish());
    if (scan) blame(tensors[1], first_non_finite_lse(p_, lse_, blocks_));
    return tensors;
  }

 private:
  Problem p_;
  const void* o_;
  const float* lse_;
  BlockLists blocks_;
  Comparer o_check_;
  LseComparer lse_check_;
};

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

// dk and dv of the sampled keys of one (b, hk), summed over the group's query heads.
template <typename Real>
struct KeyGradients {
  std::vector<typename Head<Real>::KeyGradient> of_key;

  explicit KeyGradients(std::size_t keys) : of_key(keys) {}

  void add(const Head<Real>& head, const RowSums<Real>& sums,
           const std::vector<std::int64_t>& keys) {
    for (std::size_t n = 0; n < keys.size(); ++n) {
      head.add_key_gradient(keys[n], sums.lse, sums.delta, of_key[n]);
    }
  }

  // When every head of the group has been added.
  void finish(const Problem& p) {
    for (auto& key : of_key) {
      const auto scale = static_cast<Real>(p.softmax_scale());
      for (Real& value : key.dk) value *= scale;
      for (Real& value : key.dk_terms) value *= std::fabs(scale);
    }
  }
};

// dq of sampled rows, dk and dv of sampled keys.
class GradientRows {
 public:
  GradientRows(const Problem& p, const BackwardArgs& args)
      : p_(p),
        args_(args),
        dq_("dq", p.dtype, most_terms(p), compare_means(p)),
        dk_("dk", p.dtype, most_terms(p), compare_means(p)),
        dv_("dv", p.dtype, most_terms(p), compare_means(p)) {}

  // Of the query heads of keys' head hk.
  void add(const BackwardTruth& truth, const CheckSample& sample, std::int64_t b, std::int64_t hk) {
    const std::int64_t first = hk * (p_.hq / p_.hk);
    for (std::size_t h = 0; h < truth.queries.size(); ++h) {
      for (std::size_t at = 0; at < sample.rows.size(); ++at) {
        const auto& [right, naive] = truth.queries[h][at];
        add_row(dq_, args_.dq, p_.dtype, p_.q(), b, first + static_cast<std::int64_t>(h),
                sample.rows[at], right.dq, right.terms, naive);
      }
    }
    for (std::size_t at = 0; at < sample.keys.size(); ++at) {
      NaiveRows dk, dv;
      for (const auto& order : truth.naive_keys) {
        dk.push_back(order[at].dk);
        dv.push_back(order[at].dv);
      }
      const auto& right = truth.keys[at];
      const std::int64_t key = sample.keys[at];
      add_row(dk_, args_.dk, p_.dtype, p_.k(), b, hk, key, right.dk, right.dk_terms, dk);
      add_row(dv_, args_.dv, p_.dtype, p_.v(), b, hk, key, right.dv, right.dv_terms, dv);
    }
  }

  // scan: also look at every element that was not compared.
  void finish(bool scan, std::vector<TensorCheck>& tensors) {
    tensors.push_back(finish(dq_, {args_.dq, p_.dtype, p_.q(), p_.hq, p_.sq, p_.d}, scan));
    tensors.push_back(finish(dk_, {args_.dk, p_.dtype, p_.k(), p_.hk, p_.sk, p_.d}, scan));
    tensors.push_back(finish(dv_, {args_.dv, p_.dtype, p_.v(), p_.hk, p_.sk, p_.dv}, scan));
  }

 private:
  // An fp16 gradient may overflow by right.
  TensorCheck finish(Comparer& comparer, const TensorView& tensor, bool scan) {
    TensorCheck check = comparer.finish();
    if (scan) {
      const Infinity infinity = p_.dtype == DType::fp16 ? Infinity::may_be_right : Infinity::wrong;
      blame(check, first_non_finite(p_.b, tensor, infinity));
    }
    return check;
  }

  Problem p_;
  BackwardArgs args_;
  Comparer dq_, dk_, dv_;
};

// The gradients of the rows of one query head.
std::vector<BackwardTruth::Query> query_gradients(const Head<double>& truth,
                                                  const RowSums<double>& exact,
                                                  const std::vector<Head<float>>& naive,
                                                  const std::vector<RowSums<float>>& rounded,
                                                  const std::vector<std::int64_t>& rows) {
  std::vector<BackwardTruth::Query> found;
  for (const std::int64_t i : rows) {
    const auto row = static_cast<std::size_t>(i);
    auto& one = found.emplace_back();
    one.right = truth.dq(i, exact.lse[row], exact.delta[row]);
    for (std::size_t n = 0; n < naive.size(); ++n) {
      one.naive.push_back(naive[n].dq(i, rounded[n].lse[row], rounded[n].delta[row]).dq);
    }
  }
  return found;
}

// given: rows of a sample, which are compared as well.
BackwardTruth backward_truth(const Problem& p, const BackwardArgs& args, const CheckSample& sample,
                             std::int64_t b, std::int64_t hk, ForwardRows& given) {
  const std::int64_t group = p.hq / p.hk;
  BackwardTruth found;
  KeyGradients<double> right(sample.keys.size());
  std::vector<KeyGradients<float>> rough(static_cast<std::size_t>(sample.orders),
                                         KeyGradients<float>(sample.keys.size()));
  CheckedHeads heads(p, args, sample.orders);
  for (std::int64_t hq = hk * group; hq < (hk + 1) * group; ++hq) {
    const Head<double> truth = heads.truth(b, hq);
    const auto naive = heads.yardstick(b, hq);
    if (!sample.complete) given.add(forward_truth(truth, naive, sample.rows), sample.rows, b, hq);
    const RowSums<double> exact(p, truth, args, b, hq, sample.complete);
    right.add(truth, exact, sample.keys);
    std::vector<RowSums<float>> rounded;
    for (std::size_t n = 0; n < naive.size(); ++n) {
      rounded.emplace_back(p, naive[n], args, b, hq, sample.complete);
      rough[n].add(naive[n], rounded[n], sample.keys);
    }
    found.queries.push_back(query_gradients(truth, exact, naive, rounded, sample.rows));
  }
  right.finish(p);
  found.keys = std::move(right.of_key);
  for (KeyGradients<float>& order : rough) {
    order.finish(p);
    found.naive_keys.push_back(std::move(order.of_key));
  }
  return found;
}

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
  if (p.packed()) return check_packed_forward(p, args, options);
  const CheckSample sample = sample_forward(p, options);
  ForwardRows rows(p, args.o, args.lse, args.blocks);
  CheckedHeads heads(p, args, sample.orders);
  for (const auto [b, h] : sample.heads) {
    const auto make = [&, b = b, h = h] {
      return forward_truth(heads.truth(b, h), heads.yardstick(b, h), sample.rows);
    };
    const bool keep = options.truths != nullptr;
    rows.add(keep ? options.truths->forward(b, h, make) : make(), sample.rows, b, h);
  }
  const bool scan = !sample.complete && inputs_are_finite(p, args.q, args.k, args.v, nullptr);
  return report_of(rows.finish(scan), !sample.complete);
}

CheckReport check_backward(const Problem& p, const BackwardArgs& args,
                           const CheckOptions& options) {
  if (p.packed()) return check_packed_backward(p, args, options);
  const CheckSample sample = sample_backward(p, options);
  ForwardRows given(p, args.o, args.lse, args.blocks);
  GradientRows gradients(p, args);
  const bool keep = options.truths != nullptr && sample.complete;
  for (const auto [b, hk] : sample.heads) {
    const auto make = [&, b = b, hk = hk] { return backward_truth(p, args, sample, b, hk, given); };
    gradients.add(keep ? options.truths->backward(b, hk, make) : make(), sample, b, hk);
  }
  const bool scan = !sample.complete && inputs_are_finite(p, args.q, args.k, args.v, args.d_o);
  std::vector<TensorCheck> tensors;
  if (!sample.complete) tensors = given.finish(scan);
  gradients.finish(scan, tensors);
  if (p.bias && args.d_bias != nullptr) tensors.push_back(check_bias(p, args, sample.rows));
  if (p.sink && args.d_sinks != nullptr) tensors.push_back(check_sinks(p, args));
  return report_of(std::move(tensors), !sample.complete);
}

}  // namespace dfa
