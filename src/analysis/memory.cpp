#include "analysis/memory.h"

#include "analysis/tensors.h"
#include "dfa/error.h"
#include "spec/passes.h"

namespace dfa::analysis {

Footprint footprint(const Problem& p, Algorithm algorithm) {
  if (algorithm == Algorithm::automatic) {
    throw InvalidArgument("footprint: algorithm automatic; accepted: standard, flash");
  }
  const Tensors t(p);
  const bool flash = algorithm == Algorithm::flash;
  const bool backward = has_backward(p);
  Footprint sum{.inputs = t.q + t.k + t.v + t.bias};
  if (backward) {
    sum.inputs += t.o;  // do
    sum.outputs = t.q + t.k + t.v + t.d_bias;
  }
  // The forward writes o; FlashAttention's backward reads it for delta, the standard one does not.
  if (has_forward(p)) {
    sum.outputs += t.o;
  } else if (flash) {
    sum.inputs += t.o;
  }
  if (flash) {
    sum.lse = t.row;
    if (backward) sum.workspace = t.row + t.dq_sums;
  } else {
    sum.scores = 2 * t.scores;
  }
  return sum;
}

std::int64_t longest_length(const Problem& problem, Algorithm algorithm, double bytes) {
  const auto fits = [&](std::int64_t length) {
    return footprint(with_length(problem, length), algorithm).total() <= bytes;
  };
  std::int64_t low = 0, high = 1LL << 40;
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

Problem with_length(Problem problem, std::int64_t length) {
  problem.sq = problem.sk = length;
  problem.blocks.reset();  // which take no memory to speak of, and are of one length
  problem.q_strides = problem.k_strides = problem.v_strides = problem.o_strides = {};
  return problem;
}

}  // namespace dfa::analysis
