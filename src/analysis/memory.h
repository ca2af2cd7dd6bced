#pragma once

#include <cstdint>

#include "dfa/attention.h"

// Bytes that attention holds at once, by what they are for. Scores are in the element type; lse,
// delta and the sums of dq are fp32.
namespace dfa::analysis {

struct Footprint {
  double inputs = 0;     // q k v; the backward also reads do (and, with FlashAttention, o)
  double outputs = 0;    // o; dq dk dv
  double scores = 0;     // standard: S and P in the forward, P and dS in the backward
  double lse = 0;        // FlashAttention: one fp32 a query row
  double workspace = 0;  // FlashAttention's backward: delta, and dq summed in fp32

  double total() const { return inputs + outputs + scores + lse + workspace; }
};

// For problem.pass; forward and backward together hold what the backward holds, o included.
// algorithm is standard or flash; automatic throws InvalidArgument.
Footprint footprint(const Problem& problem, Algorithm algorithm);

// The longest sq = sk whose footprint is at most `bytes`; 0 when not even one row fits.
std::int64_t longest_length(const Problem& problem, Algorithm algorithm, double bytes);

// The same problem at sq = sk = length, tensors dense.
Problem with_length(Problem problem, std::int64_t length);

}  // namespace dfa::analysis
