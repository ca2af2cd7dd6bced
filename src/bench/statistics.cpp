#include "bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace dfa::bench {
namespace {

double sorted_quantile(const std::vector<double>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

std::vector<double> sorted_copy(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace

double quantile(std::span<const double> values, double q) {
  return sorted_quantile(sorted_copy(values), q);
}

Summary summarize(std::span<const double> values) {
  if (values.empty()) return {};
  const std::vector<double> sorted = sorted_copy(values);
  Summary summary{.median = sorted_quantile(sorted, 0.5),
                  .min = sorted.front(),
                  .p95 = sorted_quantile(sorted, 0.95),
                  .n = static_cast<int>(sorted.size())};
  summary.mean =
      std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(sorted.size());
  std::vector<double> deviations;
  for (const double value : sorted) deviations.push_back(std::abs(value - summary.median));
  summary.mad = quantile(deviations, 0.5);
  return summary;
}

double relative_half_width(double median, double mad, int n) {
  constexpr double kMadToSigma = 1.4826;        // of a normal distribution
  constexpr double kMedianEfficiency = 1.2533;  // sd of the median over sd of the mean
  constexpr double kNormal95 = 1.96;
  if (n < 2 || !(median > 0)) return std::numeric_limits<double>::infinity();
  return kNormal95 * kMedianEfficiency * kMadToSigma * mad / std::sqrt(n) / median;
}

}  // namespace dfa::bench
