#pragma once

#include <vector>

#include "dfa/error.h"
#include "dfa/problem.h"
#include "spec/config.h"

// Which configurations may run which problem, as plain rules with reasons. Pure: no device is
// asked.
namespace dfa {

// What the machine offers, as far as legality needs it.
struct Limits {
  Target highest = Target::cpu_portable;  // every target up to this one is there
  long long cache_bytes = 1LL << 20;      // private cache of one core (L2)
};

Verdict check(const ForwardConfig& config, const Problem& problem, const Limits& limits);
Verdict check(const BackwardConfig& config, const Problem& problem, const Limits& limits);

// Every legal configuration from a fixed grid of tiles, for the problem's element type and dims.
std::vector<ForwardConfig> forward_candidates(const Problem& problem, const Limits& limits);
std::vector<BackwardConfig> backward_candidates(const Problem& problem, const Limits& limits);

}  // namespace dfa
