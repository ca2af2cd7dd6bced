#pragma once

#include <span>

namespace dfa::measure {

// Robust summary of repeated measurements, in the unit of the values.
struct Summary {
  double median = 0;
  double mean = 0;
  double min = 0;
  double p95 = 0;
  double mad = 0;  // median absolute deviation from the median, not scaled
  int n = 0;
  // Of the 95 % interval of the median: the larger of mad_half_width and of the distribution-free
  // interval between order statistics, as the MAD alone is blind to values that jump between two
  // levels. Infinite below two values.
  double half_width = 0;
};

// Quantile q in [0, 1] by linear interpolation between order statistics. Values must not be empty.
double quantile(std::span<const double> values, double q);

// Of no values: all zeros.
Summary summarize(std::span<const double> values);

// Half-width of the 95 % interval of the median for normal noise: the MAD scaled to a standard
// deviation, times the median's efficiency loss, over sqrt(n). Infinite below two values.
double mad_half_width(double mad, int n);

}  // namespace dfa::measure
