#include "bench/compare.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "bench/sample_result.h"
#include "dfa/error.h"

namespace dfa::bench {
namespace {

using testing::sample_case;
using testing::sample_result;

constexpr double kTolerance = 0.02;

TEST(Judge, TellsChangeFromNoise) {
  const auto verdict = [](double ratio, double noise) {
    return judge({10, noise}, {10 * ratio, noise}, kTolerance);
  };
  EXPECT_EQ(verdict(1.00, 0.001), Change::same);
  EXPECT_EQ(verdict(1.015, 0.001), Change::same);
  EXPECT_EQ(verdict(1.05, 0.001), Change::slower);
  EXPECT_EQ(verdict(0.95, 0.001), Change::faster);
  EXPECT_EQ(verdict(1.00, 0.05), Change::unclear);  // could be anything within 7 %
  EXPECT_EQ(verdict(1.05, 0.05), Change::unclear);
  EXPECT_EQ(verdict(1.50, 0.05), Change::slower);
  EXPECT_EQ(verdict(1.021, 0.001), Change::unclear);  // straddles the tolerance
}

TEST(Compare, AFileAgainstItselfIsTheSame) {
  const Comparison c = compare(sample_result(), sample_result(), kTolerance);
  ASSERT_EQ(c.cases.size(), 4u);
  EXPECT_EQ(c.cases[0].time, Change::same);
  EXPECT_EQ(c.cases[0].joules, Change::not_measured);
  EXPECT_EQ(c.cases[3].time, Change::not_measured);  // out of memory in both
  EXPECT_FALSE(c.worse());
  EXPECT_TRUE(c.only_a.empty());
}

TEST(Compare, SlowerIsWorseAndFasterIsNot) {
  Result b = sample_result();
  b.cases[1].time_ms->median *= 0.8;
  EXPECT_EQ(compare(sample_result(), b, kTolerance).cases[1].time, Change::faster);
  EXPECT_FALSE(compare(sample_result(), b, kTolerance).worse());
  const Comparison back = compare(b, sample_result(), kTolerance);
  EXPECT_EQ(back.cases[1].time, Change::slower);
  EXPECT_NEAR(back.cases[1].time_ratio.value(), 1.25, 1e-12);
  EXPECT_TRUE(back.worse());
}

TEST(Compare, MoreJoulesAtTheSameSpeedIsWorse) {
  Result a = sample_result(), b = sample_result();
  a.cases[1].energy_j = 1.0;
  a.cases[1].energy_uncertainty_j = 0.01;
  b.cases[1].energy_j = 1.2;
  b.cases[1].energy_uncertainty_j = 0.01;
  const Comparison c = compare(a, b, kTolerance);
  EXPECT_EQ(c.cases[1].time, Change::same);
  EXPECT_EQ(c.cases[1].joules, Change::slower);
  EXPECT_TRUE(c.worse());
  b.cases[1].energy_uncertainty_j = 0.5;
  EXPECT_EQ(compare(a, b, kTolerance).cases[1].joules, Change::unclear);
}

TEST(Compare, ACaseThatNoLongerRunsIsWorseAndSaysSo) {
  Result b = sample_result();
  b.cases[0].status = Status::failed;
  const Comparison c = compare(sample_result(), b, kTolerance);
  EXPECT_EQ(c.cases[0].note, "was ok, now failed");
  EXPECT_TRUE(c.worse());
}

TEST(Compare, CasesWithoutAPartnerAreListed) {
  Result a = sample_result(), b = sample_result();
  a.cases.erase(a.cases.begin());
  b.cases[2].backend = "cuda";
  const Comparison c = compare(a, b, kTolerance);
  EXPECT_EQ(c.cases.size(), 2u);
  ASSERT_EQ(c.only_a.size(), 1u);
  ASSERT_EQ(c.only_b.size(), 2u);
  EXPECT_NE(c.only_a[0].find("dynamic | cpu"), std::string::npos);
  EXPECT_NE(c.only_b[1].find("dynamic | cuda"), std::string::npos);
}

TEST(Compare, TheSameCaseTwiceInAFileIsRefused) {
  Result twice = sample_result();
  twice.cases.push_back(twice.cases[0]);
  EXPECT_THROW(compare(twice, sample_result(), kTolerance), InvalidArgument);
}

TEST(Compare, PrintsJson) {
  const Json json = Json::parse(to_json(compare(sample_result(), sample_result(), kTolerance)));
  EXPECT_EQ(json["worse"], false);
  EXPECT_EQ(json["cases"][0]["time"], "same");
  EXPECT_TRUE(json["cases"][3]["time_ratio"].is_null());
}

}  // namespace
}  // namespace dfa::bench
