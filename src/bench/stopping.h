#pragma once

#include <span>

namespace dfa::bench {

// When enough samples of one variant have been taken.
struct StoppingRule {
  int min_samples = 3;         // always, whatever they cost
  int confident_samples = 10;  // below this a small spread proves nothing
  int max_samples = 5000;
  double relative_bound = 0.01;  // of the median's 95 % interval
  double budget_s = 1.0;         // measured time of this variant

  // `durations`: the samples so far, in seconds.
  bool enough(std::span<const double> durations) const;
  // No more may be taken, though others may still need theirs.
  bool exhausted(std::span<const double> durations) const;
};

}  // namespace dfa::bench
