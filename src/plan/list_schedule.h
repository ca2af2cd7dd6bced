#pragma once

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

namespace dfa {

// Blocks, or pairs of them, that take work tiles one after the other, in order, as they come free.
class ListSchedule {
 public:
  explicit ListSchedule(int blocks) : blocks_(blocks) {
    for (int block = 0; block < blocks; ++block) ends_.push(0);
  }

  void take(double cost) {
    const double end = ends_.top() + cost;  // of whoever is free first
    ends_.pop();
    ends_.push(end);
    last_ = std::max(last_, end);
    all_ += cost;
  }

  // When the last ends.
  double end() const { return last_; }
  // What one works, on average, over what the last to end would have done by then.
  double balance() const { return all_ / blocks_ / last_; }

 private:
  int blocks_;
  std::priority_queue<double, std::vector<double>, std::greater<>> ends_;
  double all_ = 0, last_ = 0;
};

}  // namespace dfa
