#include "measure/tuner.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "dfa/error.h"
#include "plan/select.h"
#include "sensors/fakes.h"
#include "spec/config_text.h"
#include "spec/limits.h"

namespace dfa::measure {
namespace {

using dfa::testing::FakeClock;

TEST(FindFastest, FindsTheFastestOfAll) {
  FakeClock clock;
  const double seconds[] = {1.0, 1.2, 0.7, 2.0, 0.9};
  const FastestOf best = find_fastest(
      5, [&](std::size_t i) { clock.now += seconds[i]; }, {.budget_s = 1000}, clock);
  EXPECT_EQ(best.index, 2u);
  EXPECT_EQ(best.search.tried, 5);
  EXPECT_EQ(best.search.candidates, 5);
  EXPECT_DOUBLE_EQ(best.search.seconds, clock.now);
}

TEST(FindFastest, TheDefaultWinsUnlessItIsClearlyBeaten) {
  FakeClock clock;
  const double seconds[] = {1.0, 0.995};
  EXPECT_EQ(find_fastest(
                2, [&](std::size_t i) { clock.now += seconds[i]; }, {.budget_s = 1000}, clock)
                .index,
            0u);
}

TEST(FindFastest, OneLuckyRunDoesNotWin) {
  FakeClock clock;
  int runs = 0;
  const auto run = [&](std::size_t i) {
    const bool lucky = i == 1 && ++runs == 1;
    clock.now += lucky ? 0.1 : i == 1 ? 1.5 : 1.0;
  };
  EXPECT_EQ(find_fastest(2, run, {.budget_s = 1000}, clock).index, 0u);
}

TEST(FindFastest, KeepsToItsBudgetAndSaysHowManyItTried) {
  FakeClock clock;
  const FastestOf best = find_fastest(
      100, [&](std::size_t) { clock.now += 1; }, {.budget_s = 20}, clock);
  EXPECT_EQ(best.search.tried, 7);  // two runs each in 70 % of 20 s
  EXPECT_LE(best.search.seconds, 26);
}

TEST(FindFastest, CandidatesThatCannotRunArePassedOverButNotTheDefault) {
  FakeClock clock;
  const auto run = [&](std::size_t i) {
    if (i == 1) throw Unsupported("not here");
    clock.now += i == 2 ? 0.5 : 1.0;
  };
  const FastestOf best = find_fastest(3, run, {.budget_s = 1000}, clock);
  EXPECT_EQ(best.index, 2u);
  EXPECT_EQ(best.search.tried, 2);
  EXPECT_THROW(find_fastest(
                   2, [](std::size_t) { throw Unsupported("none"); }, {.budget_s = 1}, clock),
               Unsupported);
}

TEST(TileCandidates, TheDefaultComesFirstThenTheNearestAllOfItsInstructionSet) {
  Plan plan;
  plan.problem = parse_problem("fwd fp32 b1 h1 s512 d64");
  const ForwardConfig start{.target = Target::cpu_avx2, .block_q = 64, .block_k = 128};
  plan.config = to_text(start);
  const auto candidates = tile_candidates(plan, {.highest = Target::cpu_avx2});
  ASSERT_GT(candidates.size(), 10u);
  EXPECT_EQ(candidates[0], plan.config);
  for (const std::string& text : candidates) {
    EXPECT_EQ(parse_config(text, ForwardConfig{}).target, Target::cpu_avx2);
  }
  const ForwardConfig next = parse_config(candidates[1], ForwardConfig{});
  EXPECT_LE(std::abs(next.block_q - 64) + std::abs(next.block_k - 128), 64);
}

TEST(TileCandidates, OfAGpuAreThoseOfThePlansKernelsThatFitItsLimits) {
  for (const int architecture : {80, 90}) {
    const Limits limits = gpu_limits(architecture);
    Plan plan;
    plan.problem = parse_problem("fwd bf16 b1 h1 s512 d64");
    const ForwardConfig usual = select_forward(plan.problem, limits);
    plan.config = to_text(usual);
    const auto candidates = tile_candidates(plan, limits);
    const auto legal = forward_candidates(plan.problem, limits);
    EXPECT_EQ(static_cast<std::ptrdiff_t>(candidates.size()),
              std::count_if(legal.begin(), legal.end(),
                            [&](const ForwardConfig& c) { return c.target == usual.target; }));
    EXPECT_GT(candidates.size(), 3u);
    EXPECT_EQ(candidates[0], plan.config);
  }
}

// A backward may follow any forward that the same card plans: none is of other kernels.
TEST(TileCandidates, OfFp32OnHopperAllAreOfPartsInEitherPass) {
  const Limits limits = gpu_limits(90);
  Plan plan;
  plan.problem = parse_problem("fwd fp32 b1 h1 s512 d64");
  plan.config = to_text(select_forward(plan.problem, limits));
  const auto split_of = [](const std::vector<std::string>& texts) {
    return std::count_if(texts.begin(), texts.end(), [](const std::string& text) {
      return text.find("cuda_sm90") != std::string::npos;
    });
  };
  const auto forwards = tile_candidates(plan, limits);
  EXPECT_GE(forwards.size(), 4u);
  EXPECT_EQ(split_of(forwards), std::ssize(forwards));
  plan.problem.pass = Pass::backward;
  plan.backward_config = to_text(select_backward(plan.problem, limits));
  const auto backwards = tile_candidates(plan, limits);
  EXPECT_GE(backwards.size(), 2u);
  EXPECT_EQ(split_of(backwards), std::ssize(backwards));
}

}  // namespace
}  // namespace dfa::measure
