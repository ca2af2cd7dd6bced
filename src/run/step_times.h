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
    const double mean = std::accumulate(took_s_.begin(), end(), 0.0) / static_cast<double>(known());
    return std::max(shortest(), mean / 2);
  }

  // A step may have been a pause of the user's: a gap is no longer than two seconds, or than what
  // the shortest of the last steps asks for.
  double gap_s(double duty) const {
    const double rest = 1 / duty - 1;
    return std::min(work_s() * rest, std::max(2.0, shortest() * rest));
  }

 private:
  std::size_t known() const {
    return std::min<std::size_t>(took_s_.size(), static_cast<std::size_t>(steps_));
  }
  std::array<double, 16>::const_iterator end() const {
    return took_s_.begin() + static_cast<std::ptrdiff_t>(known());
  }
  double shortest() const { return *std::min_element(took_s_.begin(), end()); }

  std::array<double, 16> took_s_{};
  long long steps_ = 0;
};

}  // namespace dfa::run
