#pragma once

#include "reference/check.h"

namespace dfa {

// A head's sum over all batches or packed sequences, from the o and lse that the backward was
// given.
double sink_gradient(const Problem& problem, const BackwardArgs& args, std::int64_t head);

// The gradient of the sinks, of all batches or packed sequences together, by the rule of check.h,
// from the o and lse that the backward was given.
TensorCheck check_sinks(const Problem& problem, const BackwardArgs& args);

}  // namespace dfa
