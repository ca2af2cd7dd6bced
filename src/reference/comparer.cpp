#include "reference/comparer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/element.h"

namespace dfa {
namespace {

// 0 finite, otherwise which kind of non-finite.
int kind(double value) {
  if (std::isnan(value)) return 3;
  if (std::isinf(value)) return value > 0 ? 1 : 2;
  return 0;
}

// What rounding to this type moves a number by, at most, of the number.
double unit_roundoff(DType type) {
  switch (type) {
    case DType::bf16: return 0x1p-9;
    case DType::fp16:
    case DType::tf32: return 0x1p-12;
    case DType::e4m3: return 0x1p-5 + 0x1p-9;  // twice: P, and o in bf16
    default: return 0x1p-24;
  }
}

// The error of doing any arithmetic at all in this type: (x + 0.3) - 0.3 against x.
double noise(DType type, float stored) {
  const float moved = round_to(type, round_to(type, stored + 0.3f) - 0.3f);
  return std::fabs(static_cast<double>(moved) - static_cast<double>(stored));
}

// Of a tensor without a finite number, whose error and bound of 0 say nothing.
std::string nothing_to_bound(std::int64_t as_right) {
  return fmt::format("no finite number to bound: {} infinities and NaNs, each where it is right",
                     as_right);
}

}  // namespace

void Comparer::add(float got, double truth, double terms, std::span<const float> naive,
                   std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t x) {
  const DType stored_as = type_ == DType::tf32 ? DType::fp32 : output_of(type_);
  const float stored = round_to(stored_as, static_cast<float>(truth));
  if (kind(got) != kind(stored)) {
    if (mismatch_.empty()) {
      mismatch_ = fmt::format("at b{} h{} s{} x{}: {} where {} is right", b, h, s, x, got, stored);
    }
    return;
  }
  if (kind(stored) != 0) {
    ++as_right_;
    return;
  }
  ++count_;
  const double error = std::fabs(static_cast<double>(got) - truth);
  sum_error_ += error;
  if (error > check_.max_error || worst_.empty()) {
    check_.max_error = error;
    worst_ = fmt::format("worst at b{} h{} s{} x{}: {:.9g} where {:.9g} is right", b, h, s, x, got,
                         truth);
  }
  const double noise_here = noise(output_of(type_), stored);
  sum_noise_ += noise_here;
  max_noise_ = std::max(max_noise_, noise_here);
  max_truth_ = std::max(max_truth_, std::fabs(truth));
  max_terms_ = std::max(max_terms_, terms);
  sum_terms_ += terms;
  naive_.resize(std::max(naive_.size(), naive.size()));
  for (std::size_t order = 0; order < naive.size(); ++order) {
    orders_differ_ = orders_differ_ || naive[order] != naive[0];
    // A yardstick that itself overflows must not loosen the bound.
    const float naive_stored = round_to(stored_as, naive[order]);
    if (kind(naive_stored) != 0) continue;
    const double naive_error = std::fabs(static_cast<double>(naive_stored) - truth);
    naive_[order].sum += naive_error;
    naive_[order].max = std::max(naive_[order].max, naive_error);
  }
}

// The yardstick samples what roundings do by summing in several orders. Where all terms of every
// sum are alike (constant tensors, one-hot rows) every order rounds alike, and where terms cancel
// to nothing (dq where all values are equal) the noise of the result is none: it says nothing then.
bool Comparer::yardstick_says_nothing() const {
  const bool alike = naive_.size() > 1 && !orders_differ_;
  const bool cancelled = max_truth_ <= 0x1p-30 * max_terms_;
  return alike || cancelled;
}

TensorCheck Comparer::finish() {
  const double n = static_cast<double>(std::max<std::int64_t>(1, count_));
  Yardstick naive;  // in the worst of its orders
  for (const Yardstick& order : naive_) {
    naive = {std::max(naive.sum, order.sum), std::max(naive.max, order.max)};
  }
  check_.bound = 2 * naive.max + 2 * max_noise_;
  check_.mean_error = sum_error_ / n;
  check_.mean_bound = 1.5 * naive.sum / n + sum_noise_ / n;
  if (yardstick_says_nothing()) {
    // What n additions in fp32, and terms rounded to the type before, cost at most of their sizes.
    const double roundoff = static_cast<double>(terms_) * 0x1p-24 + 2 * unit_roundoff(type_);
    check_.bound = std::max(check_.bound, roundoff * max_terms_);
    check_.mean_bound = std::max(check_.mean_bound, roundoff * sum_terms_ / n);
  }
  check_.ok = mismatch_.empty() && check_.max_error <= check_.bound &&
              (!means_ || check_.mean_error <= check_.mean_bound);
  if (count_ == 0) worst_ = nothing_to_bound(as_right_);
  check_.detail = mismatch_.empty() ? worst_ : mismatch_;
  return check_;
}

void LseComparer::add(float got, double truth, std::span<const float> naive, std::int64_t b,
                      std::int64_t h, std::int64_t s) {
  if (kind(got) != kind(truth)) {
    if (mismatch_.empty()) {
      mismatch_ = fmt::format("at b{} h{} s{}: {} where {} is right", b, h, s, got, truth);
    }
    return;
  }
  if (kind(truth) != 0) {
    ++as_right_;
    return;
  }
  const double error = std::fabs(static_cast<double>(got) - truth);
  const double bound = 1e-5 * (1 + std::fabs(truth));
  ++count_;
  sum_error_ += error;
  sum_bound_ += bound;
  for (const float order : naive) {
    // A yardstick that itself overflows must not loosen the bound.
    if (kind(order) != 0) continue;
    max_naive_ = std::max(max_naive_, std::fabs(static_cast<double>(order) - truth));
  }
  const auto keep = [&](Worst& worst, double compared) {
    if (compared <= worst.compared) return;
    worst = {
        compared, error, bound,
        fmt::format("worst at b{} h{} s{}: {:.9g} where {:.9g} is right", b, h, s, got, truth)};
  };
  keep(of_bound_, error / bound);
  if (error > bound) keep(of_passed_, error);
}

TensorCheck LseComparer::finish() {
  const double n = static_cast<double>(std::max<std::int64_t>(1, count_));
  check_.mean_error = sum_error_ / n;
  check_.mean_bound = sum_bound_ / n;
  // A score near zero that cancels from terms of hundreds misses its row's bound however it is
  // summed in fp32: then the naive sum, which misses it too, says by how much.
  const bool passed = of_passed_.compared >= 0;
  const Worst& worst = passed ? of_passed_ : of_bound_;
  check_.max_error = worst.error;
  check_.bound = passed ? std::max(worst.bound, 2 * max_naive_) : worst.bound;
  check_.ok = mismatch_.empty() && check_.max_error <= check_.bound;
  check_.detail = !mismatch_.empty() ? mismatch_
                  : count_ == 0      ? nothing_to_bound(as_right_)
                                     : worst.detail;
  return check_;
}

}  // namespace dfa
