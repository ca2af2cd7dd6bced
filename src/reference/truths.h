#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "reference/head.h"

namespace dfa {

// Rows of a tensor in each of the yardstick's orders of summation.
using NaiveRows = std::vector<std::vector<float>>;

// What the forward of one query head is held against: rows of a sample.
struct ForwardTruth {
  std::vector<Head<double>::Row> rows;
  std::vector<std::vector<Head<float>::Row>> naive;  // of each row, an order of summation each
};

// The backward of one head of keys: rows of the sample of each of its query heads, and keys.
struct BackwardTruth {
  struct Query {
    Head<double>::Gradient right;
    NaiveRows naive;
  };
  std::vector<std::vector<Query>> queries;  // of each query head
  std::vector<Head<double>::KeyGradient> keys;
  std::vector<std::vector<Head<float>::KeyGradient>> naive_keys;  // an order of summation each
};

// What checks have calculated of one problem's inputs. Outputs of the same ones, by other kernels,
// are held against it without calculating it again. Not for two threads at once.
class Truths {
 public:
  // Of head h of batch b; make() where it is asked for first.
  const ForwardTruth& forward(std::int64_t b, std::int64_t h,
                              const std::function<ForwardTruth()>& make) {
    return known(forward_, b, h, make);
  }
  const BackwardTruth& backward(std::int64_t b, std::int64_t h,
                                const std::function<BackwardTruth()>& make) {
    return known(backward_, b, h, make);
  }

  // Of one of packed sequences.
  Truths& sequence(std::size_t index) {
    std::unique_ptr<Truths>& one = sequences_[index];
    if (one == nullptr) one = std::make_unique<Truths>();
    return *one;
  }

 private:
  using Place = std::pair<std::int64_t, std::int64_t>;

  template <typename Truth>
  static const Truth& known(std::map<Place, Truth>& all, std::int64_t b, std::int64_t h,
                            const std::function<Truth()>& make) {
    const auto found = all.find({b, h});
    return found != all.end() ? found->second : all.emplace(Place{b, h}, make()).first->second;
  }

  std::map<Place, ForwardTruth> forward_;
  std::map<Place, BackwardTruth> backward_;
  std::map<std::size_t, std::unique_ptr<Truths>> sequences_;
};

}  // namespace dfa
