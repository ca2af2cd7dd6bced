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

TEST(Compare, WhatIsGoneOrHasNoTimeIsNoPass) {
  const Result a = sample_result();
  Result b = sample_result();
  b.cases.erase(b.cases.begin());
  const Comparison gone = compare(a, b, kTolerance);
  EXPECT_EQ(gone.only_a.size(), 1u);
  EXPECT_TRUE(gone.worse());
  EXPECT_FALSE(compare(b, a, kTolerance).worse());  // one more is no loss
  b.cases.clear();
  EXPECT_TRUE(compare(b, b, kTolerance).nothing_timed());
  EXPECT_TRUE(compare(b, b, kTolerance).worse());
  EXPECT_TRUE(compare(b, a, kTolerance).worse());
  b = sample_result();
  b.cases[1].time_ms.reset();
  const Comparison untimed = compare(a, b, kTolerance);
  EXPECT_EQ(untimed.cases[1].note, "no longer timed");
  EXPECT_TRUE(untimed.worse());
  EXPECT_EQ(compare(b, a, kTolerance).cases[1].note, "A has no time");
}

TEST(Compare, WrongAndFailedNeverPassWhateverAWas) {
  for (const bool failed : {true, false}) {
    Result b = sample_result();
    if (failed) {
      b.cases[1].status = CaseStatus::failed;
    } else {
      b.cases[1].check =
          CheckVerdict{.ok = false, .max_error = 1, .bound = 0.1, .seed = 1, .tensor = "o"};
    }
    EXPECT_TRUE(compare(sample_result(), b, kTolerance).worse());
    EXPECT_TRUE(compare(b, b, kTolerance).worse());
    EXPECT_FALSE(compare(b, b, kTolerance).cases[1].note.empty());
  }
  EXPECT_EQ(compare(sample_result(), sample_result(), kTolerance).cases[3].note,
            "out_of_memory in both");
}

TEST(Compare, AnotherMachineIsTold) {
  Result a = sample_result(), b = sample_result();
  a.machine.gpu =
      measure::GpuFacts{.name = "H200", .driver = "1", .power_limit_w = 700, .sm_count = 132};
  b.machine.gpu = a.machine.gpu;
  EXPECT_TRUE(compare(a, b, kTolerance).machine.empty());
  b.machine.threads = a.machine.threads + 1;
  b.machine.isa = "another";
  b.machine.gpu->driver = "2";
  b.machine.gpu->power_limit_w = 500;
  const Comparison c = compare(a, b, kTolerance);
  ASSERT_EQ(c.machine.size(), 4u);
  EXPECT_EQ(c.machine[2], "driver: 1, then 2");
  EXPECT_EQ(c.machine[3], "power limit, W: 700.0, then 500.0");
  b.machine.gpu.reset();
  EXPECT_EQ(compare(a, b, kTolerance).machine.back(), "gpu: H200, then none");
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
  b.cases[0].status = CaseStatus::failed;
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
