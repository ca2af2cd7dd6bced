#pragma once

#include <vector>

#include "reference/check.h"

namespace dfa {

// The gradient of the bias, dense, of all batches or packed sequences together, from the o and lse
// that the backward was given.
std::vector<double> bias_gradient(const Problem& problem, const BackwardArgs& args);

// That which was computed, by the rule of check.h. Of a bias of every query the rows named are
// looked at, else all of it.
TensorCheck check_bias(const Problem& problem, const BackwardArgs& args,
                       const std::vector<std::int64_t>& rows);

}  // namespace dfa
