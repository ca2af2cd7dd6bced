#include "reference/check_packed.h"

#include <cmath>
#include <string>

#include "base/element.h"
#include "reference/check_bias.h"
#include "reference/check_sinks.h"
#include "reference/packed.h"
#include "reference/truths.h"

namespace dfa {
namespace {

double share_of_bound(const TensorCheck& t) {
  if (t.max_error == 0) return t.ok ? 0 : 1e300;
  return t.bound > 0 ? t.max_error / t.bound : 1e300;
}

// Of each tensor the worst sequence stands for all.
class Worst {
 public:
  void add(const CheckReport& of_one, std::size_t sequence) {
    all_.ok = all_.ok && of_one.ok;
    all_.sampled = all_.sampled || of_one.sampled;
    for (TensorCheck tensor : of_one.tensors) {
      tensor.detail += " of sequence " + std::to_string(sequence);
      TensorCheck* known = find(tensor.name);
      if (known == nullptr) {
        all_.tensors.push_back(tensor);
      } else if ((known->ok && !tensor.ok) ||
                 (known->ok == tensor.ok && share_of_bound(tensor) > share_of_bound(*known))) {
        *known = tensor;
      }
    }
  }
  CheckReport report() const { return all_; }

 private:
  TensorCheck* find(const std::string& name) {
    for (TensorCheck& tensor : all_.tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }

  CheckReport all_;
};

// That every element of a tensor is 0.
TensorCheck zeros(const char* name, DType type, const void* base, const Strides& strides,
                  std::int64_t heads, std::int64_t rows, std::int64_t columns) {
  TensorCheck check{.name = name, .detail = "zeros"};
  for (std::int64_t at = 0; at < heads * rows * columns; ++at) {
    const std::int64_t h = at / (rows * columns), s = at / columns % rows, x = at % columns;
    const float value = load_element(base, type, h * strides.head + s * strides.row + x);
    if (value == 0) continue;
    check.ok = false;
    check.max_error = std::isfinite(value) ? std::fabs(value) : 1e300;
    check.detail = "not 0 at head " + std::to_string(h) + ", row " + std::to_string(s);
    break;
  }
  return check;
}

CheckReport zeros(std::vector<TensorCheck> tensors) {
  CheckReport report{.ok = true, .sampled = false, .tensors = std::move(tensors)};
  for (const TensorCheck& tensor : report.tensors) report.ok = report.ok && tensor.ok;
  return report;
}

// A sequence that sees no key: lse is the sink, or -inf.
CheckReport check_unseeing(const PackedSequence& one) {
  const Problem& p = one.problem;
  std::vector<TensorCheck> tensors{zeros("o", p.o_dtype(), one.forward.o, p.o(), p.hq, p.sq, p.dv)};
  if (one.forward.lse != nullptr) {
    TensorCheck lse{.name = "lse", .detail = p.sink ? "the sink" : "-inf"};
    for (std::int64_t i = 0; i < std::ssize(one.lse); ++i) {
      const double right = p.sink ? one.forward.logits.sinks[i / p.sq] : -INFINITY;
      const double got = one.lse[static_cast<std::size_t>(i)];
      lse.ok = lse.ok && (got == right || std::fabs(got - right) <= 1e-5 * (1 + std::fabs(right)));
    }
    tensors.push_back(lse);
  }
  return zeros(std::move(tensors));
}

// Operations of a check are dealt out by sequences' shares of them.
CheckOptions of_sequence(const CheckOptions& all, std::size_t index, const Problem& one,
                         double rows_by_keys) {
  CheckOptions options = all;
  if (all.truths != nullptr) options.truths = &all.truths->sequence(index);
  const double share = static_cast<double>(one.sq) * static_cast<double>(one.sk) / rows_by_keys;
  options.max_flops = all.max_flops * share;
  return options;
}

// The first rows of sequences and the last of the longest, and every so many between them.
std::vector<std::int64_t> some_rows(const Problem& p) {
  constexpr std::int64_t kMost = 64;
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < p.sq; i += std::max<std::int64_t>(1, p.sq / kMost))
    rows.push_back(i);
  if (rows.back() != p.sq - 1) rows.push_back(p.sq - 1);
  return rows;
}

template <typename All>
double rows_by_keys(const All& sequences) {
  double sum = 1;
  for (const auto& one : sequences) {
    sum += static_cast<double>(one.problem.sq) * static_cast<double>(one.problem.sk);
  }
  return sum;
}

}  // namespace

CheckReport check_packed_forward(const Problem& p, const ForwardArgs& args,
                                 const CheckOptions& options) {
  Worst worst;
  const auto sequences = sequences_of(p, args);
  const double all = rows_by_keys(sequences);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const PackedSequence& one = sequences[i];
    if (one.problem.sq == 0) continue;
    worst.add(one.problem.sk == 0 ? check_unseeing(one)
                                  : check_forward(one.problem, one.forward,
                                                  of_sequence(options, i, one.problem, all)),
              i);
  }
  return worst.report();
}

CheckReport check_packed_backward(const Problem& p, const BackwardArgs& args,
                                  const CheckOptions& options) {
  Worst worst;
  const auto sequences = sequences_of(p, args);
  const double all = rows_by_keys(sequences);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const Problem& one = sequences[i].problem;
    BackwardArgs of = sequences[i].backward;
    of.d_sinks = of.d_bias = nullptr;  // of all sequences together, below
    if (one.sq > 0 && one.sk > 0) {
      worst.add(check_backward(one, of, of_sequence(options, i, one, all)), i);
      continue;
    }
    worst.add(zeros({zeros("dq", one.dtype, of.dq, one.q(), one.hq, one.sq, one.d),
                     zeros("dk", one.dtype, of.dk, one.k(), one.hk, one.sk, one.d),
                     zeros("dv", one.dtype, of.dv, one.v(), one.hk, one.sk, one.dv)}),
              i);
  }
  CheckReport report = worst.report();
  const auto add = [&](TensorCheck check) {
    report.ok = report.ok && check.ok;
    report.tensors.push_back(std::move(check));
  };
  if (p.bias && args.d_bias != nullptr) add(check_bias(p, args, some_rows(p)));
  if (p.sink) add(check_sinks(p, args));
  return report;
}

}  // namespace dfa
