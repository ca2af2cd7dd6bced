#pragma once

#include <functional>

#include "dfa/attention.h"

// Packed sequences on a processor: one dense problem after the other, each on all threads.
namespace dfa::cpu {

// run(problem, args): of each sequence that has rows of q and of k. Rows that see no key get zeros
// and lse = -inf here.
void for_sequences(const Problem& packed, const ForwardArgs& args,
                   const std::function<void(const Problem&, const ForwardArgs&)>& run);
// Likewise; gradients of a sequence without keys, or without queries, are zeros.
void for_sequences(const Problem& packed, const BackwardArgs& args,
                   const std::function<void(const Problem&, const BackwardArgs&)>& run);

}  // namespace dfa::cpu
