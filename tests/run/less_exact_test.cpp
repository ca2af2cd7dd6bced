// e4m3 as a choice of the scheduler for problems in bf16: what it is measured by, and by whom it
// may be taken.
#include "spec/less_exact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/element.h"
#include "base/random.h"
#include "profile/json.h"
#include "run/governed.h"
#include "run/made_up_rows.h"
#include "run/policy_plan.h"
#include "sensors/nvml_world.h"
#include "sensors/system_clock.h"
#include "temp_dir.h"

namespace dfa::run {
namespace {

const Problem kInBf16 = parse_problem("fwd bf16 causal b2 hq4 hk2 s70 d64");
constexpr std::int64_t kElements = 2 * 70 * 64 * (4 + 2 + 2);  // of q, k and v

std::vector<DType> types_of(const std::string& line, bool less_exact) {
  std::vector<DType> types;
  for (const auto& plans :
       candidate_plans(parse_problem(line), {.backend = "cpu", .less_exact = less_exact}).plans) {
    types.push_back(plans.any().problem.dtype);
  }
  return types;
}

bool has_e4m3(const std::string& line, bool less_exact) {
  const std::vector<DType> types = types_of(line, less_exact);
  return std::ranges::find(types, DType::e4m3) != types.end();
}

TEST(LessExact, IsTheTypeWhoseOutputsAreTheProblemsOwn) {
  const auto of = [](const char* line) { return less_exact(parse_problem(line)); };
  EXPECT_EQ(of("fwdbwd fp32 b1 h1 s8 d8"), DType::tf32);
  EXPECT_EQ(of("fwd bf16 b1 h1 s8 d8"), DType::e4m3);
  for (const char* line : {"fwd fp16 b1 h1 s8 d8", "fwd tf32 b1 h1 s8 d8", "fwd e4m3 b1 h1 s8 d8",
                           "bwd bf16 b1 h1 s8 d8", "fwdbwd bf16 b1 h1 s8 d8"}) {
    EXPECT_EQ(of(line), std::nullopt) << line;
  }
}

TEST(LessExact, AForwardInBf16IsOfferedE4m3WhereTheCallerAllowsIt) {
  EXPECT_TRUE(has_e4m3("fwd bf16 b1 h2 s128 d64", true));
  EXPECT_FALSE(has_e4m3("fwd bf16 b1 h2 s128 d64", false));
  for (const char* line : {"fwd fp16 b1 h2 s128 d64", "fwd fp32 b1 h2 s128 d64",
                           "bwd bf16 b1 h2 s128 d64", "fwdbwd bf16 b1 h2 s128 d64"}) {
    EXPECT_FALSE(has_e4m3(line, true)) << line;
  }
  EXPECT_EQ(types_of("fwd bf16 b1 h2 s128 d64", true).front(), DType::bf16);
}

TEST(LessExact, WhatABackendHasNotIsToldInOneLine) {
  const auto refused = candidate_plans(parse_problem("fwd fp32 b1 h2 s128 d64"),
                                       {.backend = "cpu", .less_exact = true})
                           .refused;
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].find("'fwd tf32 b1 hq2"), 0u) << refused[0];
  // Without tiles no text tells the types apart: a profile would take one row for the other.
  EXPECT_EQ(candidate_plans(kInBf16, {.backend = "reference", .less_exact = true}).plans.size(),
            1u);
}

// Copies in e4m3 count: kElements of a byte each.
TEST(LessExact, WhatQuantisingTakesIsWithinTheBoundOfMemory) {
  PointOptions options{.backend = "cpu", .less_exact = true, .memory_bytes = kElements - 1};
  const CandidatePlans found = candidate_plans(kInBf16, options);
  for (const auto& plans : found.plans) EXPECT_EQ(plans.any().problem.dtype, DType::bf16);
  ASSERT_EQ(found.refused.size(), 1u);
  EXPECT_NE(found.refused[0].find("MB may be had"), std::string::npos) << found.refused[0];
  options.memory_bytes = 64 << 20;
  EXPECT_EQ(candidate_plans(kInBf16, options).plans.at(1).any().problem.dtype, DType::e4m3);
}

// Of the plans in both types that candidate_plans() has, the default ones.
struct Both {
  explicit Both(const Problem& problem)
      : found(candidate_plans(problem, {.backend = "cpu", .less_exact = true})) {}
  const measure::PassPlans& exact() const { return found.plans.at(0); }
  const measure::PassPlans& e4m3() const { return found.plans.at(1); }
  CandidatePlans found;
};

std::optional<Candidate> measured(measure::ProblemBuffers& buffers,
                                  const measure::PassPlans& plans) {
  sensors::SystemClock clock;
  const PointOptions options{.backend = "cpu", .seconds = 0.01, .settle_s = 0};
  return measure_candidate(buffers, plans, options, measure::open_telemetry({}, clock), {}, clock);
}

// The check holds e4m3 to the numbers that it reads; the caller's bound is of those that he has.
TEST(LessExact, APointsErrorHasInItWhatQuantisingCosts) {
  measure::ProblemBuffers buffers(kInBf16, "cpu", 1);
  const Both both(kInBf16);
  const auto exact = measured(buffers, both.exact()), e4m3 = measured(buffers, both.e4m3());
  ASSERT_TRUE(exact && e4m3);
  EXPECT_EQ(e4m3->point.dtype, DType::e4m3);
  EXPECT_LT(exact->point.error, 0.02);
  const CheckReport own = buffers.check(both.e4m3(), {});
  EXPECT_TRUE(own.ok) << own.summary();
  EXPECT_LT(own.worst().max_error, 0.02) << own.summary();
  EXPECT_GT(e4m3->point.error, 3 * exact->point.error);
  EXPECT_GT(e4m3->point.error, 0.03);  // a step of e4m3 is up to 2^-3 of a number
  EXPECT_LT(e4m3->point.error, 0.5);
  EXPECT_GE(e4m3->point.memory_bytes, kElements + exact->point.memory_bytes);
}

TEST(LessExact, PlansOfBothTypesTakeTurnsOnTheSameTensors) {
  measure::ProblemBuffers buffers(kInBf16, "cpu", 1);
  const Both both(kInBf16);
  const auto rows = buffers.rows_check(kGuardRows);
  buffers.run(both.exact());
  const AlignedBuffer before = buffers.outputs().o;
  EXPECT_LT(buffers.error(*rows, 3), 0.02);
  buffers.run(both.e4m3());
  EXPECT_GT(buffers.error(*rows, 3), 0.02);
  EXPECT_TRUE(buffers.check(both.e4m3(), {}).ok);
  EXPECT_TRUE(buffers.check(both.exact(), {}).ok);
  buffers.run(both.exact());
  const AlignedBuffer after = buffers.outputs().o;
  EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size()), 0);
}

// A call that was given no number of that kind has no right output either.
TEST(LessExact, RowsOfAWrongOutputAreSeen) {
  measure::ProblemBuffers buffers(kInBf16, "cpu", 1), other(kInBf16, "cpu", 7);
  const Both both(kInBf16);
  const auto rows = buffers.rows_check(kGuardRows);
  buffers.run(both.exact());
  other.run(both.exact());
  ForwardArgs args = buffers.forward_args();
  args.o = other.forward_args().o;
  EXPECT_GT(rows->error(args, 1, {}), 0.3);
  EXPECT_THROW(buffers.rows_check(0), InvalidArgument);
  const Problem packed = parse_problem("fwd bf16 h2 lens(5,9) d16");
  EXPECT_THROW(measure::ProblemBuffers(packed, "cpu", 1).rows_check(4), Unsupported);
}

class LessExactProfile : public ::testing::Test {
 protected:
  LessExactProfile() : both_(kInBf16), store_(folder_ / "p.db") {
    put(both_.exact(), 2e-3, 0.2, 0.004);
    put(both_.e4m3(), 1e-3, 0.1, 0.05);
  }
  void put(const measure::PassPlans& plans, double time_s, double energy_j, double error) {
    profile::Row row = made_up_row(kInBf16, label_of(plans), time_s, energy_j);
    row.point.dtype = plans.any().problem.dtype;
    row.point.error = error;
    store_.put(row);
  }
  KnownPoints known(const Problem& problem, bool less_exact) const {
    return stored_points(problem, store_, {.backend = "cpu", .less_exact = less_exact});
  }

  const testing::TempDir folder_;
  Both both_;
  profile::Store store_;
};

TEST_F(LessExactProfile, ItsKeysTellTheTypesApart) {
  ASSERT_EQ(store_.rows().size(), 2u);
  const auto carried = profile::from_json(profile::to_json(store_.rows()));
  ASSERT_EQ(carried.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(carried[i].point.dtype, store_.rows()[i].point.dtype);
    EXPECT_EQ(carried[i].problem, to_line(kInBf16));
  }
  const KnownPoints points = known(kInBf16, true);
  ASSERT_EQ(points.candidates.size(), 2u);  // of the frontier, the fastest first
  EXPECT_EQ(points.candidates[0].point.dtype, DType::e4m3);
  EXPECT_EQ(points.candidates[0].plans.any().problem.dtype, DType::e4m3);
  EXPECT_EQ(points.candidates[1].point.dtype, DType::bf16);
  EXPECT_GE(points.candidates[0].point.memory_bytes, kElements);
}

TEST_F(LessExactProfile, WithoutABoundNobodyIsGivenE4m3) {
  const KnownPoints points = known(kInBf16, false);
  ASSERT_EQ(points.candidates.size(), 1u);
  EXPECT_EQ(points.candidates[0].point.dtype, DType::bf16);
  for (const char* policy : {"max_performance", "min_energy", "edp", "latency:1.5ms"}) {
    const auto chosen = [&] {
      return policy_plan(kInBf16, (folder_ / "p.db").string(), "cpu", power::parse_policy(policy));
    };
    if (std::string(policy) == "latency:1.5ms") {
      EXPECT_THROW(chosen(), Unsupported);  // e4m3 alone would be in time
    } else {
      EXPECT_EQ(chosen().config, label_of(both_.exact())) << policy;
    }
  }
}

// Rows that somebody wrote: o in fp16 is none that a plan of e4m3 leaves.
TEST_F(LessExactProfile, ATypeThatIsNoLeverOfTheProblemIsNotTaken) {
  Problem half = kInBf16;
  half.dtype = DType::fp16;
  profile::Row row = made_up_row(half, label_of(both_.e4m3()), 1e-3, 0.1);
  row.point.dtype = DType::e4m3;
  store_.put(row);
  EXPECT_TRUE(known(half, true).candidates.empty());
}

TEST_F(LessExactProfile, WhatTheBackendHasNoMoreIsLeftOutAndTold) {
  profile::Row row = made_up_row(parse_problem("fwd fp32 b1 h2 s64 d64"), "", 1e-3, 0.1);
  const Problem problem = parse_problem(row.problem);
  row.point.label = label_of(measure::prepare(problem, {.backend = "cpu"}));
  store_.put(row);
  row.point.label = "ForwardConfig{.element=DType::tf32}";
  row.point.dtype = DType::tf32;
  row.point.time_s = 1e-4;
  store_.put(row);
  const KnownPoints points = known(problem, true);
  ASSERT_EQ(points.candidates.size(), 1u);
  EXPECT_EQ(points.candidates[0].point.dtype, DType::fp32);
  EXPECT_NE(points.told.find("; tf32 left out"), std::string::npos) << points.told;
  const KnownPoints near = known(parse_problem("fwd fp32 b1 h2 s128 d64"), true);
  ASSERT_EQ(near.candidates.size(), 1u);
  EXPECT_NE(near.told.find("; tf32 left out"), std::string::npos) << near.told;
}

TEST_F(LessExactProfile, ARowWhoseCopiesAreBeyondTheBoundOfMemoryIsLeftOutAndTold) {
  const PointOptions options{.backend = "cpu", .less_exact = true, .memory_bytes = kElements - 1};
  const KnownPoints points = stored_points(kInBf16, store_, options);
  ASSERT_EQ(points.candidates.size(), 1u);
  EXPECT_EQ(points.candidates[0].point.dtype, DType::bf16);
  EXPECT_NE(points.told.find("; e4m3 left out, it takes"), std::string::npos) << points.told;
}

TEST_F(LessExactProfile, TuningKeepsBothRows) {
  const testing::TempDir folder;
  profile::Store store(folder / "t.db");
  sensors::SystemClock clock;
  const TuneOptions options{
      .points = {
          .backend = "cpu", .candidates = 2, .less_exact = true, .seconds = 0.01, .settle_s = 0}};
  const TuneReport first = tune({kInBf16}, store, options, clock);
  EXPECT_EQ(first.measured, 2);
  EXPECT_EQ(first.wrong, 0);
  EXPECT_EQ(tune({kInBf16}, store, options, clock).kept, 2);
}

// q, k and v in bf16, columns of q and k that are large in every row, as language models have them.
AlignedBuffer with_outliers(std::int64_t rows, std::int64_t d, float outlier, std::uint64_t seed) {
  AlignedBuffer values(static_cast<std::size_t>(2 * rows * d));
  const Random random(seed);
  for (std::int64_t at = 0; at < rows * d; ++at) {
    const float factor = at % d < 2 ? outlier : 1;
    store_element(values.data(), DType::bf16, at,
                  factor * random.normal(static_cast<std::uint64_t>(at)));
  }
  return values;
}

// On a processor under a made-up card: e4m3 by a profile of tame inputs, and what the inputs are.
Governed governed(float outlier, double max_error) {
  const dfa::testing::NvmlWorld world(
      "clock real\ndriver 580.1\ncard H200 GPU-bb 00000000:5E:00.0\npower constant 300\n"
      "tick 0.02\ntemperature 61 70\nclocks 1.755e9 3.2e9\nlimit 700\nprocess own\n");
  const Problem problem = parse_problem("fwd bf16 b1 h2 s96 d64");
  const AlignedBuffer q = with_outliers(2 * 96, 64, outlier, 1),
                      k = with_outliers(2 * 96, 64, outlier, 2),
                      v = with_outliers(2 * 96, 64, 1, 3);
  measure::ProblemBuffers buffers(problem, "cpu", 1, {.q = q.data(), .k = k.data(), .v = v.data()});
  const Both both(problem);
  std::vector<Candidate> candidates(2);
  candidates[0].plans = both.exact();
  candidates[0].point = {.label = "bf16", .time_s = 2e-4, .power_w = 650, .error = 2e-3};
  candidates[1].plans = both.e4m3();
  candidates[1].point = {
      .label = "e4m3", .dtype = DType::e4m3, .time_s = 1e-4, .power_w = 650, .error = 0.04};
  for (Candidate& candidate : candidates) candidate.point.takes_sm_budget = false;
  RunOptions options{.sections = {{{power::Goal::max_performance, 0}, 0.8}}};
  options.max_error = max_error;
  sensors::SystemClock clock;
  const GpuIdentity gpu{.pci_id = "0000:5e:00.0", .name = "NVIDIA H200", .sm_count = 132};
  return run_governed({{buffers, candidates}}, options, gpu, 120.0, clock);
}

TEST(LessExactRun, E4m3StaysWhereItsErrorsDo) {
  const Governed run = governed(1, 0.15);
  EXPECT_EQ(run.unwatched, "");
  EXPECT_GE(run.guard.checks, 2);
  EXPECT_GT(run.guard.worst, 5e-3);  // of e4m3, not of bf16
  for (const power::Decision& decision : run.trace.decisions) {
    EXPECT_EQ(decision.action.point, 1u) << decision.why;
  }
}

TEST(LessExactRun, AnErrorAboveTheBoundStepsUpToBf16) {
  const Governed run = governed(8, 0.15);
  EXPECT_GT(run.guard.worst, 0.15);
  ASSERT_FALSE(run.trace.decisions.empty());
  EXPECT_EQ(run.trace.decisions.front().action.point, 1u);
  EXPECT_EQ(run.trace.decisions.back().action.point, 0u);
  const bool told = std::ranges::any_of(run.trace.decisions, [](const power::Decision& d) {
    return d.why.find("above the bound 0.15") != std::string::npos;
  });
  EXPECT_TRUE(told);
}

TEST(LessExactRun, ByItsRowAloneE4m3BeyondTheBoundNeverRuns) {
  for (const power::Decision& decision : governed(1, 0.03).trace.decisions) {
    EXPECT_EQ(decision.action.point, 0u) << decision.why;
  }
}

}  // namespace
}  // namespace dfa::run
