#pragma once

#include "dfa/attention.h"

namespace dfa::cpu {

// Sets d_bias to 0, to which the backward then adds.
void clear_bias_gradients(const Problem& problem, const BackwardArgs& args);

}  // namespace dfa::cpu
