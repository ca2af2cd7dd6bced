#include "bench/stopping.h"

#include <numeric>

#include "bench/statistics.h"

namespace dfa::bench {

bool StoppingRule::enough(std::span<const double> durations) const {
  const int n = static_cast<int>(durations.size());
  if (n < min_samples) return false;
  if (n >= max_samples) return true;
  if (std::accumulate(durations.begin(), durations.end(), 0.0) >= budget_s) return true;
  if (n < confident_samples) return false;
  if (n % (1 + n / 20) != 0) return false;  // sorting at every sample would outweigh short ones
  const Summary summary = summarize(durations);
  return relative_half_width(summary.median, summary.mad, n) <= relative_bound;
}

}  // namespace dfa::bench
