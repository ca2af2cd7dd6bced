#pragma once

#include <vector>

#include "dfa/problem.h"
#include "spec/config.h"
#include "spec/limits.h"

namespace dfa {

// Legal ones of cuda_sm80, or of cuda_sm75 on such a machine, the best first.
std::vector<BackwardConfig> portable_backward_candidates(const Problem& problem,
                                                         const Limits& limits);

// Whose kernel of the gradient of a bias stands beside Hopper's own backward.
BackwardConfig bias_gradient_config(const Problem& problem);

// The first that is looked at, legal or not: the one whose reason is told where none is.
BackwardConfig first_portable_backward(const Problem& problem, const Limits& limits);

}  // namespace dfa
