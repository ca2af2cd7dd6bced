#pragma once

#include <cstdint>
#include <vector>

#include "analysis/machine.h"
#include "dfa/problem.h"

// The roofline: a kernel takes at least as long as its arithmetic at the peak rate, and at least as
// long as its bytes at the memory's rate.
namespace dfa::analysis {

struct Roofline {
  double intensity = 0;         // operations a byte
  double ridge = 0;             // intensity from which arithmetic is the bound
  double attainable_flops = 0;  // a second
  double time_s = 0;            // the least
  bool memory_bound = false;
};

// All four positive; throws InvalidArgument otherwise.
Roofline roofline(double flops, double bytes, double peak_flops, double bytes_per_s);

// From length `from` on (until the next entry) the bound is this one.
struct Regime {
  std::int64_t from = 1;
  bool memory_bound = false;
  bool scores_in_cache = false;  // S and P of all heads fit the shared cache and need not leave it
};

// Bounds of standard attention as sq = sk grows from 1 to 2^30, problem.pass at a time. While S and
// P fit the shared cache only the inputs and outputs travel; beyond, every pass goes to memory.
// Requires machine.peak_flops(problem.dtype) > 0 and a memory rate.
std::vector<Regime> standard_regimes(const Problem& problem, const Machine& machine);

// The length from which standard attention stays memory-bound; 0 when it ends compute-bound.
std::int64_t memory_bound_from(const std::vector<Regime>& regimes);

}  // namespace dfa::analysis
