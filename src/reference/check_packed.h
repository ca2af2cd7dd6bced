#pragma once

#include "reference/check.h"

namespace dfa {

// check_forward and check_backward of packed sequences: each as a dense problem, the worst of all
// as the report. An empty one leaves nothing to check, or zeros.
CheckReport check_packed_forward(const Problem& problem, const ForwardArgs& args,
                                 const CheckOptions& options);
CheckReport check_packed_backward(const Problem& problem, const BackwardArgs& args,
                                  const CheckOptions& options);

}  // namespace dfa
