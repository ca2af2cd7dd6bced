#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dfa/attention.h"

// The ruler: outputs against fp64 attention computed from the same rounded inputs.
//   max|out - ref| <= 2 max|naive - ref| + 2 max|(ref + 0.3 - 0.3) - ref|   (o, dq, dk, dv)
//   mean|out - ref| <= 1.5 mean|naive - ref| + the same noise term's mean
//   |lse - ref| <= max(1e-5 (1 + |ref|), 2 max|sum - ref|)
// (where all orders of naive give the same bits, or the terms of a tensor cancel to nothing, the
// yardstick says nothing, and the bound is what roundings cost at most: (n 2^-24 + 2 u) times the
// sum of the terms' sizes, of n terms, with the type's unit roundoff u), where naive is plain
// attention whose S and P are rounded to the element type (of e4m3 P alone: Head says how), and sum
// is the log-sum-exp of its scores before that, as lse is fp32 in every type (scores of e4m3 are
// summed as tensor cores do, in 14 bits: tensor_core_sums.h); and non-finite positions must agree
// before anything else is compared. A small problem has so few roundings that
// one naive calculation may meet the truth by luck: the smaller the problem, the more orders of
// summation naive is the worst of, and below 256 visible pairs the means are shown but not
// compared. Problems above max_flops are compared on a sample, and every other element of the
// outputs is still looked at for NaN and infinity.
namespace dfa {

class Truths;

struct CheckOptions {
  double max_flops = 2e10;  // larger problems are checked on a seeded sample of heads and rows
  std::uint64_t seed = 1;
  // What checks of this problem and these inputs have found out, and what this one will; null: it
  // is forgotten. A backward's sample takes outputs as given, so it is calculated each time.
  Truths* truths = nullptr;
};

struct TensorCheck {
  std::string name;  // o, lse, dq, dk, dv
  bool ok = true;
  double max_error = 0;
  double bound = 0;
  double mean_error = 0;
  double mean_bound = 0;
  std::string detail;  // the worst element with its coordinates, or the first non-finite one
};

struct CheckReport {
  bool ok = true;
  bool sampled = false;
  std::vector<TensorCheck> tensors;

  const TensorCheck& worst() const;  // the largest max_error / bound
  std::string summary() const;       // one line a tensor
};

// Host pointers to the inputs and to the outputs under test, with the problem's strides, and to
// where packed sequences lie.
CheckReport check_forward(const Problem& problem, const ForwardArgs& args,
                          const CheckOptions& options = {});
// A sample takes o and lse as given instead of calculating them for every row; it then checks the
// sampled rows of those two as well and reports them with the gradients.
CheckReport check_backward(const Problem& problem, const BackwardArgs& args,
                           const CheckOptions& options = {});

}  // namespace dfa
