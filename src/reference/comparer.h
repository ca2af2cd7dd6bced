#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reference/check.h"

namespace dfa {

// Gathers one tensor's elements and applies the rule of check.h to them. tf32 and fp32 differ in
// the yardstick only: both are stored as fp32. Where the type of q, k and v is e4m3, o and so the
// noise of storing it are bf16.
class Comparer {
 public:
  // terms: how many roundings an element goes through. means: also hold the mean error against the
  // yardstick's.
  Comparer(std::string name, DType type, std::int64_t terms, bool means = true)
      : type_(type), terms_(terms), means_(means) {
    check_.name = std::move(name);
  }

  // One element: what was computed, the truth, the sum of the absolute values of the terms that the
  // truth is the sum of, and what the naive calculation gives in each of its
  // orders of summation, as many of them for every element.
  void add(float got, double truth, double terms, std::span<const float> naive, std::int64_t b,
           std::int64_t h, std::int64_t s, std::int64_t x);

  TensorCheck finish();

 private:
  TensorCheck check_;
  bool yardstick_says_nothing() const;

  DType type_;
  std::int64_t terms_;
  bool means_;
  bool orders_differ_ = false;
  double max_truth_ = 0, max_terms_ = 0, sum_terms_ = 0;
  std::int64_t count_ = 0;
  std::int64_t as_right_ = 0;  // not finite, where that is right
  struct Yardstick {
    double sum = 0, max = 0;
  };
  std::vector<Yardstick> naive_;  // an order of summation each
  double sum_error_ = 0, sum_noise_ = 0, max_noise_ = 0;
  std::string worst_, mismatch_;
};

// |lse - truth| <= max(1e-5 (1 + |truth|), 2 max|naive - truth|), and -inf exactly where the row
// sees no key.
class LseComparer {
 public:
  LseComparer() { check_.name = "lse"; }
  // `naive`: of scores that are summed in fp32 and not rounded, an order of summation each.
  void add(float got, double truth, std::span<const float> naive, std::int64_t b, std::int64_t h,
           std::int64_t s);
  TensorCheck finish();

 private:
  // The row with the largest of what is compared.
  struct Worst {
    double compared = -1, error = 0, bound = 0;
    std::string detail;
  };
  TensorCheck check_;
  Worst of_bound_;   // error / bound, of all rows
  Worst of_passed_;  // error, of rows whose own bound it passes
  double max_naive_ = 0;
  std::int64_t count_ = 0;
  std::int64_t as_right_ = 0;  // not finite, where that is right
  double sum_error_ = 0, sum_bound_ = 0;
  std::string mismatch_;
};

}  // namespace dfa
