#include "measure/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace dfa::measure {
namespace {

TEST(Statistics, OrderStatisticsOfKnownValues) {
  const std::vector<double> values{5, 1, 4, 2, 3};
  const Summary s = summarize(values);
  EXPECT_DOUBLE_EQ(s.median, 3);
  EXPECT_DOUBLE_EQ(s.mean, 3);
  EXPECT_DOUBLE_EQ(s.min, 1);
  EXPECT_DOUBLE_EQ(s.p95, 4.8);
  EXPECT_DOUBLE_EQ(s.mad, 1);  // deviations 0 1 1 2 2
  EXPECT_EQ(s.n, 5);
}

TEST(Statistics, EvenCountsInterpolate) {
  EXPECT_DOUBLE_EQ(summarize(std::vector<double>{1, 2, 3, 10}).median, 2.5);
}

TEST(Statistics, OneValueAndNone) {
  const Summary one = summarize(std::vector<double>{7});
  EXPECT_DOUBLE_EQ(one.median, 7);
  EXPECT_DOUBLE_EQ(one.p95, 7);
  EXPECT_DOUBLE_EQ(one.mad, 0);
  EXPECT_EQ(summarize({}).n, 0);
}

TEST(Statistics, OutliersMoveTheMeanButNotMedianAndMad) {
  std::vector<double> values(99, 10.0);
  values.push_back(1e6);
  const Summary s = summarize(values);
  EXPECT_DOUBLE_EQ(s.median, 10);
  EXPECT_DOUBLE_EQ(s.mad, 0);
  EXPECT_GT(s.mean, 1000);
}

TEST(Statistics, MadOfNormalValuesIsTheirDeviationOver1p4826) {
  const Random random(3);
  std::vector<double> values;
  for (int i = 0; i < 20000; ++i) {
    values.push_back(100 + 2 * random.normal(static_cast<std::uint64_t>(i)));
  }
  const Summary s = summarize(values);
  EXPECT_NEAR(s.median, 100, 0.06);
  EXPECT_NEAR(1.4826 * s.mad, 2, 0.05);
  EXPECT_NEAR(s.p95, 100 + 1.645 * 2, 0.1);
}

TEST(Statistics, TheIntervalHoldsTheTrueMedian95TimesOf100) {
  constexpr int kTrials = 2000, kSamples = 40;
  const Random random(11);
  int held = 0, held_by_mad = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values;
    for (int i = 0; i < kSamples; ++i) {
      values.push_back(50 + random.normal(static_cast<std::uint64_t>(trial * kSamples + i)));
    }
    const Summary s = summarize(values);
    held += std::abs(s.median - 50) <= s.half_width ? 1 : 0;
    held_by_mad += std::abs(s.median - 50) <= mad_half_width(s.mad, s.n) ? 1 : 0;
  }
  EXPECT_NEAR(held_by_mad / 1.0 / kTrials, 0.95, 0.03);
  EXPECT_NEAR(held / 1.0 / kTrials, 0.98, 0.02);  // the larger of two intervals
}

TEST(Statistics, FewValuesProveNothing) {
  EXPECT_TRUE(std::isinf(mad_half_width(0, 1)));
  EXPECT_DOUBLE_EQ(mad_half_width(0, 2), 0);
  EXPECT_TRUE(std::isinf(summarize(std::vector<double>{1}).half_width));
}

TEST(Statistics, ValuesThatJumpBetweenTwoLevelsAreUncertainThoughTheirMadIsZero) {
  std::vector<double> values(11, 1.0);
  values.insert(values.end(), 10, 2.0);
  const Summary s = summarize(values);
  EXPECT_DOUBLE_EQ(s.mad, 0);
  EXPECT_DOUBLE_EQ(s.half_width, 1);
}

}  // namespace
}  // namespace dfa::measure
