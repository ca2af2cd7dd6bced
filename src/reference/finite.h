#pragma once

#include <string>

#include "dfa/attention.h"

// A sample sees few rows. A NaN anywhere else, say from a tail that was never written, is found by
// looking at every element, which costs next to nothing.
namespace dfa {

// One tensor in the caller's memory.
struct TensorView {
  const void* data;
  DType type;
  Strides strides;
  std::int64_t heads, rows, cols;
};

enum class Infinity { wrong, may_be_right };

// Empty, or where the first NaN (or infinity, where that is wrong) is.
std::string first_non_finite(std::int64_t batches, const TensorView& tensor, Infinity infinity);

// Empty, or where the first lse is that is not finite for a row with keys, -inf for one without.
std::string first_non_finite_lse(const Problem& problem, const float* lse,
                                 const BlockLists& blocks);

// True when no output can be NaN by right. d_o may be null.
bool inputs_are_finite(const Problem& problem, const void* q, const void* k, const void* v,
                       const void* d_o);

}  // namespace dfa
