#pragma once

#include "dfa/error.h"
#include "dfa/problem.h"
#include "spec/config.h"
#include "spec/limits.h"

// Which configurations may run which problem, as plain rules with reasons. Pure: no device is
// asked.
namespace dfa {

Verdict validate_config(const ForwardConfig& config, const Problem& problem, const Limits& limits);
Verdict validate_config(const BackwardConfig& config, const Problem& problem, const Limits& limits);

// May they be the passes of one problem? lse is of the forward's scores, which the backward
// computes again, to the last bit.
Verdict validate_pair(const ForwardConfig& forward, const BackwardConfig& backward);

}  // namespace dfa
