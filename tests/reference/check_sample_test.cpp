#include "reference/check_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "reference/tiled.h"

namespace dfa {
namespace {

constexpr CheckOptions kLittle{.max_flops = 1e5, .seed = 3};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool forward_passes(Tensors& t) { return check_forward(t.p, t.forward_args(), kLittle).ok; }
bool backward_passes(Tensors& t) { return check_backward(t.p, t.backward_args(), kLittle).ok; }

std::int64_t row_outside(const CheckSample& sample) {
  std::int64_t row = 0;
  while (std::count(sample.rows.begin(), sample.rows.end(), row) != 0) ++row;
  return row;
}

TEST(CheckSample, AProblemWithinTheBudgetIsCheckedWhole) {
  const Problem p = parse_problem("fwdbwd bf16 b2 hq4 hk2 sq30 sk40 d16");
  for (const auto& [sample, heads] :
       {std::pair{sample_forward(p, {}), 8u}, {sample_backward(p, {}), 4u}}) {
    EXPECT_TRUE(sample.complete);
    EXPECT_EQ(sample.heads.size(), heads);
    EXPECT_EQ(sample.rows.size(), 30u);
    EXPECT_EQ(sample.keys.size(), 40u);
  }
}

TEST(CheckSample, ALargeProblemShowsItsEndsItsSecondHeadAndAMixOfTheRest) {
  const Problem p = parse_problem("fwdbwd bf16 b8 hq16 hk4 s4096 d64");
  std::set<std::int64_t> rows_seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const CheckSample sample = sample_forward(p, {.max_flops = 1e9, .seed = seed});
    EXPECT_FALSE(sample.complete);
    EXPECT_EQ(sample.heads[0].b, 0);
    EXPECT_EQ(sample.heads[0].h, 0);
    EXPECT_EQ(sample.heads[1].b, 0);
    EXPECT_EQ(sample.heads[1].h, 1);
    EXPECT_EQ(sample.heads.back().b, 7);
    EXPECT_EQ(sample.heads.back().h, 15);
    EXPECT_EQ(sample.rows.front(), 0);
    EXPECT_EQ(sample.rows.back(), 4095);
    EXPECT_GE(sample.rows.size(), 16u);
    EXPECT_TRUE(std::is_sorted(sample.rows.begin(), sample.rows.end()));
    rows_seen.insert(sample.rows.begin(), sample.rows.end());
  }
  EXPECT_GT(rows_seen.size(), 100u);
}

TEST(CheckSample, HeadsAndRowsShareTheBudget) {
  const Problem p = parse_problem("fwdbwd bf16 b8 hq16 hk4 s4096 d64");
  const CheckSample forward = sample_forward(p, {.max_flops = 1e10});
  EXPECT_GE(forward.heads.size(), 8u);
  EXPECT_GE(forward.rows.size(), 300u);
  EXPECT_GE(sample_forward(p, {.max_flops = 1}).heads.size(), 3u);
  EXPECT_GE(sample_backward(p, {.max_flops = 1}).heads.size(), 3u);
}

TEST(CheckSample, TheWorkStaysNearTheBudget) {
  const Problem p = parse_problem("fwd bf16 b8 hq16 hk4 s4096 d64");
  for (const double budget : {1e9, 1e10, 1e11}) {
    const CheckSample sample = sample_forward(p, {.max_flops = budget});
    const double flops = 2.0 * 4 * 64 * 4096 * static_cast<double>(sample.rows.size()) *
                         static_cast<double>(sample.heads.size());
    EXPECT_LT(flops, 1.2 * budget);
    EXPECT_GT(flops, 0.8 * budget);
  }
}

TEST(CheckSample, ANanInARowOutsideTheSampleIsSeen) {
  for (const char* type : {"fp32", "fp16", "bf16"}) {
    for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
      Tensors t(std::string("fwd ") + type + " b1 hq1 hk1 sq400 sk100 d8");
      Tiled(t, Fault::none).forward();
      ASSERT_TRUE(forward_passes(t)) << type;
      const std::int64_t row = row_outside(sample_forward(t.p, kLittle));
      const float right = t.at(t.o, row * 8 + 5);
      t.set(t.o, row * 8 + 5, bad);
      EXPECT_FALSE(forward_passes(t)) << type << " o " << bad;
      t.set(t.o, row * 8 + 5, right);
      t.lse[static_cast<std::size_t>(row)] = bad;
      EXPECT_FALSE(forward_passes(t)) << type << " lse " << bad;
    }
  }
}

TEST(CheckSample, AnLseOfARowWithoutKeysThatIsANumberIsSeen) {
  Tensors t("fwd fp32 causal b1 hq1 hk1 sq400 sk100 d8");  // rows below 300 see nothing
  Tiled(t, Fault::none).forward();
  ASSERT_TRUE(forward_passes(t));
  t.lse[static_cast<std::size_t>(row_outside(sample_forward(t.p, kLittle)))] = -1e30f;
  EXPECT_FALSE(forward_passes(t));
}

// The truth of a sampled backward starts from the given lse: its NaN must not excuse another.
TEST(CheckSample, GradientsThatAreNanBecauseLseIsAreSeen) {
  Tensors t("fwdbwd bf16 b1 hq1 hk1 sq400 sk400 d8");
  Tiled tiled(t, Fault::none);
  tiled.forward();
  t.lse[static_cast<std::size_t>(row_outside(sample_backward(t.p, kLittle)))] = std::nanf("");
  tiled.backward();
  ASSERT_TRUE(std::isnan(t.at(t.dk, 0)));
  EXPECT_FALSE(backward_passes(t));
}

TEST(CheckSample, ABackwardFromAWrongForwardIsSeen) {
  Tensors t("fwdbwd bf16 b1 hq1 hk1 sq400 sk400 d8");
  Tiled tiled(t, Fault::none);
  tiled.forward();
  for (float& lse : t.lse) lse += 0.01f;
  tiled.backward();
  EXPECT_FALSE(backward_passes(t));
}

TEST(CheckSample, ANanInAGradientOutsideTheSampleIsSeen) {
  for (const auto& [name, tensor] :
       {std::pair{"dq", &Tensors::dq}, {"dk", &Tensors::dk}, {"dv", &Tensors::dv}}) {
    Tensors t("fwdbwd fp16 b1 hq1 hk1 sq400 sk400 d8");
    Tiled tiled(t, Fault::none);
    tiled.forward();
    tiled.backward();
    ASSERT_TRUE(backward_passes(t));
    const CheckSample sample = sample_backward(t.p, kLittle);
    std::int64_t row = row_outside(sample);
    while (std::count(sample.keys.begin(), sample.keys.end(), row) != 0) ++row;
    t.set(t.*tensor, row * 8, std::nanf(""));
    EXPECT_FALSE(backward_passes(t)) << name;
  }
}

// Where an fp16 gradient overflows is known only where the truth was calculated.
TEST(CheckSample, AnInfinityOutsideTheSampleIsWrongExceptInAnFp16Gradient) {
  for (const auto& [type, ok] : {std::pair{"fp16", true}, {"bf16", false}, {"fp32", false}}) {
    Tensors t(std::string("fwdbwd ") + type + " b1 hq1 hk1 sq400 sk100 d8");
    Tiled tiled(t, Fault::none);
    tiled.forward();
    tiled.backward();
    t.set(t.dq, row_outside(sample_backward(t.p, kLittle)) * 8, kInfinity);
    EXPECT_EQ(backward_passes(t), ok) << type;
  }
}

TEST(CheckSample, NanInTheInputsIsNotBlamedOnTheOutputs) {
  Tensors t("fwd fp32 b1 hq1 hk1 sq400 sk100 d8");
  t.set(t.q, 77 * 8, std::nanf(""));
  Tiled(t, Fault::none).forward();
  for (std::int64_t x = 0; x < 8; ++x) t.set(t.o, 77 * 8 + x, std::nanf(""));
  t.lse[77] = std::nanf("");
  EXPECT_TRUE(forward_passes(t));
}

}  // namespace
}  // namespace dfa
