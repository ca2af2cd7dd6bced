#pragma once

#include <deque>
#include <vector>

#include "dfa/attention.h"

namespace dfa {

// One sequence of a packed problem as a dense problem with pointers of its own, in the reference's
// own words: what engines and kernels make of cu_seqlens is held against this. Host pointers. Sizes
// may be 0.
struct PackedSequence {
  Problem problem;
  ForwardArgs forward;
  BackwardArgs backward;
  std::int64_t first_row = 0, all_rows = 0;
  std::vector<float> lse;  // [hq, rows] of [hq, total_q]
  std::vector<char> k, v;  // of a paged problem, [rows, hk, d] and [rows, hk, dv]

  void write_lse(float* packed) const;  // null: nothing
};

std::deque<PackedSequence> sequences_of(const Problem& packed, const ForwardArgs& args);
std::deque<PackedSequence> sequences_of(const Problem& packed, const BackwardArgs& args);

}  // namespace dfa
