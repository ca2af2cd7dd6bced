#pragma once

#include "dfa/attention.h"

namespace dfa::cpu {

// Adds to d_sinks what the rows of a dense problem give: the gradient of a head's sink is the sum
// of -exp(sink - lse) * (do · o) over its rows, in one order.
void add_sink_gradients(const Problem& problem, int threads, const BackwardArgs& args);

}  // namespace dfa::cpu
