#pragma once

#include <cstddef>

#include "dfa/attention.h"
#include "spec/target.h"

// Standard attention, the baseline: S = scale q k^T, P = softmax(S), o = P v as passes over
// matrices that are really there, for every head at once, and masked after the fact. Products are
// those of the vector engines; nothing is fused. S, P, dP and dS are fp32 whatever the element
// type; P takes the place of S and dS that of dP. Memory 4 b hq sq sk bytes forward, twice that
// backward. Where P is stored, S and P lie in the caller's memory instead, and the backward reads
// what the forward left: one product and all exponentials less.
namespace dfa::cpu {

// Exactly what the passes of the problem need: the matrices and the packed operands.
std::size_t standard_workspace_bytes(const Problem& problem, Target target, int threads,
                                     bool stored = false);
// Of P, where it is stored.
std::size_t standard_probabilities_bytes(const Problem& problem);

// lse may be null in args. P is stored where args have a place for it.
void standard_forward(const Problem& problem, Target target, int threads, const ForwardArgs& args);
void standard_backward(const Problem& problem, Target target, int threads,
                       const BackwardArgs& args);

}  // namespace dfa::cpu
