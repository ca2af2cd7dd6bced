#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>

namespace dfa::run {

// What the last steps of a loop took, and so how long a gap belongs after one.
class StepTimes {
 public:
  void add(double seconds) {
    took_s_[static_cast<std::size_t>(steps_++) % took_s_.size()] = seconds;
  }

  long long steps() const { return steps_; }

  // Of one step, after one at least. Where ranks of a job wait for each other, a step holds the
  // gaps of the others. Taken for work, they would lengthen this rank's gaps, and those theirs,
  // without end. The shortest of the last steps waited least; half the mean is the least where
  // steps are of many lengths.
  double work_s() const {
    const auto known = std::min<std::size_t>(took_s_.size(), static_cast<std::size_t>(steps_));
    const auto end = took_s_.begin() + static_cast<std::ptrdiff_t>(known);
    const double mean = std::accumulate(took_s_.begin(), end, 0.0) / static_cast<double>(known);
    return std::max(*std::min_element(took_s_.begin(), end), mean / 2);
  }

  // A step may have been a pause of the user's: no gap is longer than two seconds.
  static double gap_s(double work_s, double duty) { return std::min(work_s * (1 / duty - 1), 2.0); }

 private:
  std::array<double, 16> took_s_{};
  long long steps_ = 0;
};

}  // namespace dfa::run
