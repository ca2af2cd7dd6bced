#include "measure/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace dfa::measure {
namespace {

constexpr double kNormal95 = 1.96;

double sorted_quantile(const std::vector<double>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

// The number of values below the median is binomial: its 95 % range gives two ranks.
double rank_half_width(const std::vector<double>& sorted, double median) {
  const auto n = static_cast<double>(sorted.size());
  const double reach = kNormal95 * std::sqrt(n) / 2;
  const auto low = static_cast<std::size_t>(std::max(0.0, std::round(n / 2 - reach) - 1));
  const auto high = static_cast<std::size_t>(std::min(n - 1, std::round(n / 2 + reach)));
  return std::max(median - sorted[low], sorted[high] - median);
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
  summary.half_width =
      std::max(mad_half_width(summary.mad, summary.n), rank_half_width(sorted, summary.median));
  return summary;
}

double mad_half_width(double mad, int n) {
  constexpr double kMadToSigma = 1.4826;        // of a normal distribution
  constexpr double kMedianEfficiency = 1.2533;  // sd of the median over sd of the mean
  if (n < 2) return std::numeric_limits<double>::infinity();
  return kNormal95 * kMedianEfficiency * kMadToSigma * mad / std::sqrt(n);
}

}  // namespace dfa::measure
