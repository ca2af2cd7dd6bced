#include "analysis/roofline.h"

#include <gtest/gtest.h>

#include "dfa/error.h"

namespace dfa::analysis {
namespace {

TEST(Roofline, BelowTheRidgeTheMemoryIsTheBound) {
  const Roofline roof = roofline(100, 50, 1000, 100);  // 2 FLOP/byte, ridge 10
  EXPECT_EQ(roof.intensity, 2);
  EXPECT_EQ(roof.ridge, 10);
  EXPECT_TRUE(roof.memory_bound);
  EXPECT_EQ(roof.attainable_flops, 200);
  EXPECT_EQ(roof.time_s, 0.5);
}

TEST(Roofline, FromTheRidgeOnArithmeticIsTheBound) {
  const Roofline at = roofline(1000, 100, 1000, 100);
  EXPECT_FALSE(at.memory_bound);
  EXPECT_EQ(at.attainable_flops, 1000);
  EXPECT_EQ(at.time_s, 1);
  EXPECT_EQ(roofline(1000, 1, 1000, 100).time_s, 1);
}

TEST(Roofline, RefusesRatesThatAreNotKnown) {
  EXPECT_THROW(roofline(1, 1, 0, 1), InvalidArgument);
  EXPECT_THROW(roofline(1, 0, 1, 1), InvalidArgument);
}

TEST(Machines, RidgePointsOfTheTableByHand) {
  const auto ridge = [](const Machine& m, DType type) {
    return m.peak_flops(type) / m.memory_bytes_per_s;
  };
  const auto h200 = machines_named("h200");
  ASSERT_EQ(h200.size(), 2u);
  EXPECT_NEAR(ridge(h200[0], DType::bf16), 206.1, 0.1);                    // 989.5 / 4.8
  EXPECT_NEAR(ridge(h200[1], DType::bf16), 158.9, 0.1);                    // 677 / 4.26
  EXPECT_NEAR(ridge(machines_named("h100")[0], DType::bf16), 295.4, 0.1);  // 989.5 / 3.35
  EXPECT_NEAR(ridge(machines_named("a100")[0], DType::fp16), 200.6, 0.1);  // 312 / 1.555
  EXPECT_NEAR(ridge(machines_named("t4")[0], DType::fp16), 203.1, 0.1);    // 65 / 0.32
}

TEST(Machines, WhatIsNotOfferedOrMeasuredIsZero) {
  EXPECT_EQ(machines_named("t4")[0].peak_flops(DType::bf16), 0);
  EXPECT_EQ(machines_named("a100")[0].peak_flops(DType::e4m3), 0);
  EXPECT_EQ(machines_named("h200")[1].peak_flops(DType::fp16), 0);
}

TEST(Machines, AMeasuredCeilingIsBelowTheDatasheet) {
  const auto h200 = machines_named("h200");
  for (const DType type : {DType::fp32, DType::tf32, DType::bf16, DType::e4m3}) {
    EXPECT_LT(h200[1].peak_flops(type), h200[0].peak_flops(type)) << name_of(type);
  }
  EXPECT_LT(h200[1].memory_bytes_per_s, h200[0].memory_bytes_per_s);
}

TEST(Machines, AnUnknownNameListsTheKnownOnes) {
  try {
    machines_named("h300");
    FAIL();
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'h300'"), std::string::npos);
    EXPECT_NE(text.find("h200, h100, a100, t4, this"), std::string::npos);
  }
}

TEST(Machines, TheHostTakesItsCeilings) {
  const Machine machine =
      measured_host({.threads = 2, .fp32_flops = 3e11, .bf16_flops = 6e12, .copy_bytes = 2e10},
                    {.model = "A CPU", .core_cache_bytes = 2 << 20});
  EXPECT_EQ(machine.peak_flops(DType::fp32), 3e11);
  EXPECT_EQ(machine.peak_flops(DType::fp16), 0);
  EXPECT_EQ(machine.memory_bytes_per_s, 2e10);
  EXPECT_EQ(machine.units, 2);
  EXPECT_NE(machine.note.find("A CPU"), std::string::npos);
}

// A machine with round numbers: ridge 16, a cache of 1 MiB.
Machine round_machine() {
  Machine machine;
  machine.fp32_flops = 16e12;
  machine.fp16_flops = 16e12;
  machine.memory_bytes_per_s = 1e12;
  machine.cache_bytes = 1 << 20;
  return machine;
}

TEST(Regimes, ByHandInFp16) {
  // In the cache: 4 s s d / (4 s d 2) = s / 2 >= 16 from 32 on. S and P, 4 s s bytes, leave 1 MiB
  // after 512. In memory: s d / (2 (d + s)), which at d 64 and s 513 is 28.4: above 16 already.
  const auto regimes = standard_regimes(parse_problem("fwd fp16 h1 s1 d64"), round_machine());
  ASSERT_EQ(regimes.size(), 3u);
  EXPECT_EQ(regimes[0].from, 1);
  EXPECT_TRUE(regimes[0].memory_bound);
  EXPECT_EQ(regimes[1].from, 32);
  EXPECT_FALSE(regimes[1].memory_bound);
  EXPECT_EQ(regimes[2].from, 513);
  EXPECT_FALSE(regimes[2].scores_in_cache);
  EXPECT_FALSE(regimes[2].memory_bound);
  EXPECT_EQ(memory_bound_from(regimes), 0);
}

TEST(Regimes, ASmallHeadDimStaysMemoryBoundOnceItsScoresLeaveTheCache) {
  // At d 16 the intensity in memory tends to d / 2 = 8, below the ridge for ever.
  const auto regimes = standard_regimes(parse_problem("fwd fp16 h1 s1 d16"), round_machine());
  ASSERT_EQ(regimes.size(), 3u);
  EXPECT_TRUE(regimes[2].memory_bound);
  EXPECT_EQ(memory_bound_from(regimes), 513);
}

TEST(Regimes, WithoutACacheItIsMemoryBoundFromOneOn) {
  Machine machine = round_machine();
  machine.cache_bytes = 0;
  EXPECT_EQ(memory_bound_from(standard_regimes(parse_problem("fwd fp16 h1 s1 d16"), machine)), 1);
}

}  // namespace
}  // namespace dfa::analysis
