#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/engine.h"
#include "dfa/attention.h"

// Standard attention, the baseline: S = q k^T, P = softmax(S) and o = P v as three passes over
// matrices that are materialised for every head at once, and its backward from the stored shape.
// Products are blocked and vectorised; nothing is fused. Memory O(b hq sq sk).
namespace dfa::cpu {

// Bytes of S and P (forward), or of P and dS (backward).
std::size_t standard_workspace_bytes(const Problem& problem);

void standard_forward(const Problem& problem, Target target, int threads, const ForwardArgs& args,
                      void* workspace);
void standard_backward(const Problem& problem, Target target, int threads,
                       const BackwardArgs& args, void* workspace);

}  // namespace dfa::cpu
