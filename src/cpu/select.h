#pragma once

#include "dfa/problem.h"
#include "spec/config.h"

// The default tile for a problem, from the measurements named in select.cpp. Pure.
namespace dfa::cpu {

// The target that serves the problem's element type, at most `highest`: AMX multiplies bf16 only.
Target target_for(Target highest, const Problem& problem);

ForwardConfig default_forward(Target highest, const Problem& problem);
BackwardConfig default_backward(Target highest, const Problem& problem);

}  // namespace dfa::cpu
