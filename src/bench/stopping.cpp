#include "bench/stopping.h"

#include <numeric>

#include "measure/statistics.h"

namespace dfa::bench {

bool StoppingRule::exhausted(std::span<const double> durations) const {
  const int n = static_cast<int>(durations.size());
  if (n < min_samples) return false;
  return n >= max_samples || std::accumulate(durations.begin(), durations.end(), 0.0) >= budget_s;
}

bool StoppingRule::enough(std::span<const double> durations) const {
  if (exhausted(durations)) return true;
  const int n = static_cast<int>(durations.size());
  if (n < confident_samples) return false;
  if (n % (1 + n / 20) != 0) return false;  // sorting at every sample would outweigh short ones
  const measure::Summary summary = measure::summarize(durations);
  return summary.half_width <= relative_bound * summary.median;
}

}  // namespace dfa::bench
