#pragma once

#include <algorithm>

namespace dfa::power {

// When to recompute rows of a call, and what came of it: a plain value. Checks are `period_s`
// apart, and further where they would take more than `share` of the time.
struct Guard {
  double period_s = 0.25;
  double share = 0.004;

  int checks = 0;
  double worst = 0;
  double spent_s = 0;
  double next_s = 0;

  bool due(double time_s) const { return time_s >= next_s; }

  // A check that ended at time_s took `seconds` and saw this error.
  void add(double time_s, double seconds, double error) {
    ++checks;
    worst = std::max(worst, error);
    spent_s += seconds;
    next_s = time_s + std::max(period_s, seconds / share);
  }
};

}  // namespace dfa::power
