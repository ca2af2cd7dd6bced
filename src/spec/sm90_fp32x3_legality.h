#pragma once

#include <vector>

#include "spec/legality.h"

// The rules of legality.h for Hopper's kernels in fp32, whose products are those of bf16 parts.
namespace dfa {

// Is it that kernel's?
template <typename Config>
constexpr bool is_fp32x3(const Config& c) {
  return c.target == Target::cuda_sm90 && c.element == DType::fp32;
}

Verdict check_fp32x3(const ForwardConfig& config, const Problem& problem, const Limits& limits);
Verdict check_fp32x3(const BackwardConfig& config, const Problem& problem, const Limits& limits);

// Of both passes: the card, the element type, the dims, lengths and strides.
Verdict check_fp32x3_problem(int head_dim, int value_dim, const Problem& problem,
                             const Limits& limits);

// Can both passes be theirs, whichever the problem has? No, with the reason.
Verdict fp32x3_fits(const Problem& problem, const Limits& limits);

// Names them for every pass of a problem.
inline constexpr const char* kSplitText = "target=cuda_sm90";

// May they be the passes of one problem? lse is of the forward's scores, which the backward
// computes again, to the last bit.
Verdict check_pair(const ForwardConfig& forward, const BackwardConfig& backward);

// Every legal entry of a table of tiles, the one to run where nothing was measured in front.
std::vector<ForwardConfig> fp32x3_candidates(const Problem& problem, const Limits& limits);
std::vector<BackwardConfig> fp32x3_backward_candidates(const Problem& problem,
                                                       const Limits& limits);

// Registers that a thread with queries, or with keys, is expected to need.
int expected_fp32x3_registers(const ForwardConfig& config);
int expected_fp32x3_registers(const BackwardConfig& config);

}  // namespace dfa
