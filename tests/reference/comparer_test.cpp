#include "reference/comparer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <span>
#include <tuple>

#include "base/random.h"
#include "reference/head.h"
#include "tensors.h"

namespace dfa {
namespace {

// One element and the yardstick's value of it, in one order of summation.
void add(Comparer& comparer, float got, double truth, float naive, std::int64_t row) {
  comparer.add(got, truth, std::fabs(truth), std::span(&naive, 1), 0, 0, row, 0);
}

// A thousand elements of truth 1, of which the yardstick misses each by 1e-3; the outputs miss one
// by `single` and the others by `all`. In fp32 the noise term is below 1e-7.
TensorCheck measured(float single, float all) {
  Comparer comparer("o", DType::fp32, 100);
  for (std::int64_t i = 0; i < 1000; ++i) {
    add(comparer, 1.0f + (i == 500 ? single : all), 1.0, 1.001f, i);
  }
  return comparer.finish();
}

TEST(Comparer, OneElementMayErrTwiceAsMuchAsTheYardstick) {
  EXPECT_TRUE(measured(1.99e-3f, 0).ok);
  EXPECT_FALSE(measured(2.01e-3f, 0).ok);
  EXPECT_FALSE(measured(-2.01e-3f, 0).ok);
  EXPECT_NE(measured(2.01e-3f, 0).detail.find("s500"), std::string::npos);
}

TEST(Comparer, AllElementsTogetherMayErrOneAndAHalfTimesAsMuch) {
  EXPECT_TRUE(measured(0, 1.49e-3f).ok);
  EXPECT_FALSE(measured(0, 1.52e-3f).ok);  // each of them well within the bound of one
}

TEST(Comparer, WithoutMeansTheLargestErrorStillCounts) {
  for (const auto& [error, ok] : {std::pair{1.9e-3f, true}, {2.1e-3f, false}}) {
    Comparer comparer("o", DType::fp32, 100, false);
    add(comparer, 1.0f + error, 1.0, 1.001f, 0);
    EXPECT_EQ(comparer.finish().ok, ok);
  }
}

TEST(Comparer, TheNoiseOfTheTypeIsAllowedWhereTheYardstickIsExact) {
  for (const auto& [type, step] : {std::pair{DType::bf16, 0x1p-7f}, {DType::fp16, 0x1p-10f}}) {
    for (const auto& [steps, ok] : {std::pair{1.0f, true}, {8.0f, false}}) {
      Comparer comparer("o", type, 100);
      add(comparer, 1.0f + steps * step, 1.0, 1.0f, 0);
      for (std::int64_t i = 1; i < 1000; ++i) {
        const float truth = round_to(type, Random(1).normal(static_cast<std::uint64_t>(i)));
        add(comparer, truth, truth, truth, i);
      }
      EXPECT_EQ(comparer.finish().ok, ok) << steps;
    }
  }
}

TEST(Comparer, AYardstickThatOverflowsDoesNotLoosenTheBound) {
  for (const float naive : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Comparer comparer("o", DType::fp32, 100);
    add(comparer, 1.0f, 1.0, naive, 0);
    add(comparer, 1.5f, 1.0, 1.0f, 1);
    const TensorCheck check = comparer.finish();
    EXPECT_FALSE(check.ok);
    EXPECT_TRUE(std::isfinite(check.bound));
  }
}

TEST(Comparer, WhatHasNoFiniteNumberSaysSo) {
  constexpr float kBeyond = std::numeric_limits<float>::infinity();
  Comparer comparer("o", DType::fp32, 100);
  LseComparer lse;
  for (std::int64_t row = 0; row < 3; ++row) {
    add(comparer, kBeyond, 1e300, kBeyond, row);
    lse.add(-kBeyond, -kBeyond, {}, 0, 0, row);
  }
  for (const TensorCheck& check : {comparer.finish(), lse.finish()}) {
    EXPECT_TRUE(check.ok) << check.name;
    EXPECT_EQ(check.detail,
              "no finite number to bound: 3 infinities and NaNs, each where it is right");
  }
  add(comparer, -kBeyond, 1e300, kBeyond, 3);
  EXPECT_FALSE(comparer.finish().ok);
  EXPECT_EQ(comparer.finish().detail, "at b0 h0 s3 x0: -inf where inf is right");
}

// All orders alike, and exact: the a-priori bound of 100 terms is 6e-6 of their sum.
TEST(Comparer, AYardstickOfEqualOrdersBoundsNothing) {
  for (const auto& [error, alike, ok] :
       {std::tuple{5e-6f, true, true}, {5e-6f, false, false}, {8e-6f, true, false}}) {
    Comparer comparer("o", DType::fp32, 100);
    for (std::int64_t i = 0; i < 10; ++i) {
      const float orders[] = {1.0f, alike ? 1.0f : 1.0000001f};
      comparer.add(1.0f + error, 1.0, 1.0, orders, 0, 0, i, 0);
    }
    EXPECT_EQ(comparer.finish().ok, ok) << error << alike;
  }
}

TEST(Comparer, TermsThatCancelToNothingAreBoundedByTheirSizes) {
  for (const auto& [error, ok] : {std::pair{5e-6f, true}, {8e-6f, false}}) {
    Comparer comparer("dq", DType::fp32, 100);
    const float orders[] = {0.0f, 1e-9f};
    comparer.add(error, 1e-17, 1.0, orders, 0, 0, 0, 0);
    EXPECT_EQ(comparer.finish().ok, ok) << error;
  }
}

// Two orders of summation, each lucky in another element: the mean of neither, the worst of both.
TEST(Comparer, TheWorstOrderOfSummationIsTheYardstick) {
  for (const auto& [error, ok] : {std::pair{2.9e-3f, true}, {3.1e-3f, false}}) {
    Comparer comparer("o", DType::fp32, 100);
    for (std::int64_t i = 0; i < 100; ++i) {
      const float orders[] = {1.001f, i % 2 == 0 ? 1.0f : 1.004f};
      comparer.add(1.0f + error, 1.0, 1.0, orders, 0, 0, i, 0);
    }
    EXPECT_EQ(comparer.finish().ok, ok) << error;
  }
}

TEST(Comparer, InfinitiesMustAgreeInSign) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const auto& [got, ok] : {std::pair{1.0f, true}, {-1.0f, false}}) {
    Comparer comparer("dq", DType::fp16, 100);
    add(comparer, got * std::numeric_limits<float>::infinity(), kInf, 1.0f, 0);
    EXPECT_EQ(comparer.finish().ok, ok);
  }
}

// Rows of lse 0, whose own bound is 1e-5, and one of lse 300, whose yardstick misses by `naive`.
TensorCheck of_lse(float error, float naive) {
  LseComparer comparer;
  for (std::int64_t i = 0; i < 10; ++i) {
    const float exact[] = {0.0f};
    comparer.add(i == 4 ? error : 0.0f, 0, exact, 0, 0, i);
  }
  const float orders[] = {300.0f, 300.0f + naive};
  comparer.add(300.0f, 300, orders, 0, 0, 10);
  return comparer.finish();
}

TEST(LseComparer, ARowMayErrTwiceAsMuchAsTheWorstYardstickOfAny) {
  const float step = 300 * 0x1p-23f;  // about: what 300 can be moved by
  const float naive = (300.0f + step) - 300.0f;
  EXPECT_TRUE(of_lse(0.9e-5f, 0).ok);
  EXPECT_FALSE(of_lse(1.1e-5f, 0).ok);
  EXPECT_TRUE(of_lse(1.9f * naive, naive).ok);
  EXPECT_FALSE(of_lse(2.1f * naive, naive).ok);
  EXPECT_FALSE(of_lse(-2.1f * naive, naive).ok);
  EXPECT_NE(of_lse(2.1f * naive, naive).detail.find("s4"), std::string::npos);
}

TEST(LseComparer, AYardstickThatOverflowsDoesNotLoosenTheBound) {
  for (const float naive : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    EXPECT_FALSE(of_lse(1.1e-5f, naive).ok);
    EXPECT_TRUE(std::isfinite(of_lse(1.1e-5f, naive).bound));
  }
}

// lse is stored in fp32 whatever the elements are: its yardstick must not round scores to theirs.
TEST(Yardstick, DoesNotRoundScoresForLogSumExp) {
  for (const char* type : {"bf16", "fp16", "fp32"}) {
    Tensors t(std::string("fwd ") + type + " b1 hq1 hk1 sq20 sk50 d64");
    const Head<float> naive(t.p, t.q.data(), t.k.data(), t.v.data(), nullptr, 0, 0);
    const Head<double> truth(t.p, t.q.data(), t.k.data(), t.v.data(), nullptr, 0, 0);
    double worst = 0;
    for (std::int64_t i = 0; i < 20; ++i) {
      const double error = static_cast<double>(naive.forward(i).plain_lse) - truth.forward(i).lse;
      worst = std::max(worst, std::fabs(error));
    }
    EXPECT_GT(worst, 0) << type;
    EXPECT_LT(worst, 2e-6) << type;
  }
}

TEST(Yardstick, OrdersOfSummationVisitEveryTermOnce) {
  for (const std::int64_t count : {1, 2, 3, 8, 37, 64, 200}) {
    std::set<std::int64_t> first;
    for (int number = 0; number < kMostSumOrders; ++number) {
      std::set<std::int64_t> seen;
      for (std::int64_t n = 0; n < count; ++n) seen.insert(SumOrder{number}.term(n, count));
      EXPECT_EQ(std::ssize(seen), count) << number;
      EXPECT_GE(*seen.begin(), 0);
      EXPECT_LT(*seen.rbegin(), count);
      first.insert(SumOrder{number}.term(0, count));
    }
    EXPECT_GE(std::ssize(first), std::min<std::int64_t>(count, kMostSumOrders / 2)) << count;
  }
}

TEST(Yardstick, AnOrderOfSummationChangesRoundingOnly) {
  Tensors t("fwd fp32 b1 hq1 hk1 sq20 sk50 d64");
  const Head<float> one(t.p, t.q.data(), t.k.data(), t.v.data(), nullptr, 0, 0);
  const Head<float> other(t.p, t.q.data(), t.k.data(), t.v.data(), nullptr, 0, 0, 3);
  int changed = 0;
  for (std::int64_t i = 0; i < 20; ++i) {
    const auto a = one.forward(i).o, b = other.forward(i).o;
    for (std::size_t x = 0; x < a.size(); ++x) {
      changed += a[x] != b[x];
      EXPECT_NEAR(a[x], b[x], 1e-5);
    }
  }
  EXPECT_GT(changed, 100);
}

// Ones for values: the truth is the sum of the probabilities, and the yardstick shows their
// rounding.
TEST(Yardstick, RoundsProbabilitiesToTheElement) {
  for (const auto& [type, least, most] :
       {std::tuple{"bf16", 1e-5, 1e-2}, {"fp16", 1e-6, 1e-3}, {"fp32", 0.0, 1e-6}}) {
    Tensors t(std::string("fwd ") + type + " b1 hq1 hk1 sq20 sk50 d8");
    for (std::int64_t i = 0; i < t.count(t.v); ++i) t.set(t.v, i, 1.0f);
    const Head<float> naive(t.p, t.q.data(), t.k.data(), t.v.data(), nullptr, 0, 0);
    double worst = 0;
    for (std::int64_t i = 0; i < 20; ++i) {
      worst = std::max(worst, std::fabs(static_cast<double>(naive.forward(i).o[0]) - 1));
    }
    EXPECT_GE(worst, least) << type;
    EXPECT_LE(worst, most) << type;
  }
}

}  // namespace
}  // namespace dfa
