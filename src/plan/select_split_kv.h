#pragma once

#include <vector>

#include "dfa/problem.h"
#include "spec/config.h"
#include "spec/limits.h"

// Decode of packed sequences: kernels that cut keys into splits on the device
// (ForwardConfig::split_kv).
namespace dfa {

// Are sequences' queries so few that such a kernel is the fastest there is?
bool has_few_queries(const Problem& problem);

// Every legal one, the fastest first.
std::vector<ForwardConfig> split_kv_candidates(const Problem& problem, const Limits& limits);

}  // namespace dfa
