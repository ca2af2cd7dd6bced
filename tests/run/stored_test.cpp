// Recomputed or stored probabilities as a choice of the scheduler.
#include <gtest/gtest.h>

#include "attention/registry.h"
#include "dfa/error.h"
#include "measure/tuner.h"
#include "run/made_up_rows.h"
#include "run/policy_plan.h"
#include "run/tune.h"
#include "sensors/system_clock.h"
#include "temp_dir.h"

namespace dfa::run {
namespace {

const Problem kProblem = parse_problem("fwdbwd fp32 b1 h2 s128 d64");
const std::string kStored = "StandardConfig{.probabilities=Probabilities::stored}";
constexpr std::int64_t kMatrix = 4LL * 2 * 128 * 128;

class StoredChoice : public ::testing::Test {
 protected:
  StoredChoice() {
    store_ = std::make_unique<profile::Store>(folder_ / "p.db");
    recomputed_ = label_of(candidate_plans(kProblem, {.backend = "cpu"}).plans.at(0));
  }

  void put(const std::string& label, double time_s, double energy_j) {
    profile::Row row = made_up_row(kProblem, label, time_s, energy_j);
    row.point.stores_probabilities = label == kStored;
    store_->put(row);
  }
  Plan by(const std::string& policy) const {
    return policy_plan(kProblem, (folder_ / "p.db").string(), "cpu", power::parse_policy(policy));
  }

  const testing::TempDir folder_;
  std::unique_ptr<profile::Store> store_;
  std::string recomputed_;
};

TEST_F(StoredChoice, AForwardWithItsBackwardIsOfferedBoth) {
  const CandidatePlans found = candidate_plans(kProblem, {.backend = "cpu"});
  ASSERT_EQ(found.plans.size(), 2u);
  EXPECT_EQ(label_of(found.plans[1]), kStored);
  EXPECT_EQ(found.plans[1].probabilities_bytes(), static_cast<std::size_t>(kMatrix));
  EXPECT_EQ(found.plans[0].probabilities_bytes(), 0u);
  EXPECT_TRUE(found.refused.empty());
  for (const char* line : {"fwd fp32 b1 h2 s128 d64", "bwd fp32 b1 h2 s128 d64"}) {
    for (const auto& plans : candidate_plans(parse_problem(line), {.backend = "cpu"}).plans) {
      EXPECT_NE(label_of(plans), kStored);
    }
  }
}

TEST_F(StoredChoice, WhatThereIsNoMemoryForIsRefusedInOneLine) {
  const CandidatePlans found =
      candidate_plans(kProblem, {.backend = "cpu", .memory_bytes = kMatrix});
  EXPECT_EQ(found.plans.size(), 1u);
  ASSERT_EQ(found.refused.size(), 1u);
  const std::string& line = found.refused[0];
  EXPECT_EQ(line.find("stored probabilities of 'fwdbwd fp32"), 0u) << line;
  EXPECT_NE(line.find("of which 0.1311 MB may be had: recomputed"), std::string::npos) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos);
  // Far beyond any machine: by what is free.
  const Problem large = parse_problem("fwdbwd bf16 b8 h16 s65536 d64");
  EXPECT_EQ(candidate_plans(large, {.backend = "cpu"}).refused.size(), 1u);
}

TEST_F(StoredChoice, TuningMeasuresBothAndTellsWhatItLeftOut) {
  sensors::SystemClock clock;
  TuneOptions options{.points = {.backend = "cpu", .seconds = 0.02, .settle_s = 0}};
  options.points.memory_bytes = kMatrix;
  const TuneReport without = tune({kProblem}, *store_, options, clock);
  EXPECT_EQ(without.measured, 1);
  ASSERT_EQ(without.refused.size(), 1u);
  options.points.memory_bytes.reset();
  const TuneReport with = tune({kProblem}, *store_, options, clock);
  EXPECT_EQ(with.measured, 1);
  EXPECT_EQ(with.kept, 1);
  EXPECT_EQ(with.wrong, 0);  // the check against fp64
  EXPECT_TRUE(with.refused.empty());
  const auto row =
      store_->find(machine_of("cpu", kProblem.pass).card, to_line(kProblem), "cpu", kStored);
  ASSERT_TRUE(row);
  EXPECT_TRUE(row->point.stores_probabilities);
  EXPECT_GT(row->point.memory_bytes, 2 * kMatrix);  // P and dP
}

TEST_F(StoredChoice, IsTakenWhereItsRowIsBetterByThePolicy) {
  put(recomputed_, 2e-3, 0.1);
  put(kStored, 1e-3, 0.2);
  const Plan fast = by("max_performance");
  EXPECT_EQ(fast.config, kStored);
  EXPECT_EQ(fast.probabilities_bytes, static_cast<std::size_t>(kMatrix));
  EXPECT_NE(fast.why.find("keeps for the backward"), std::string::npos) << fast.why;
  EXPECT_NE(fast.why.find("by policy max_performance from 2 measured"), std::string::npos);
  const Plan frugal = by("min_energy");
  EXPECT_EQ(frugal.algorithm, Algorithm::flash);
  EXPECT_EQ(frugal.probabilities_bytes, 0u);
}

// On the frontier the stored row has the other one's place, which is why memory comes first.
TEST_F(StoredChoice, WithoutMemoryTheOtherRowServesAndThatIsTold) {
  put(recomputed_, 2e-3, 0.2);
  put(kStored, 1e-3, 0.1);
  EXPECT_EQ(stored_points(kProblem, *store_, {.backend = "cpu"}).candidates.size(), 1u);
  const KnownPoints known =
      stored_points(kProblem, *store_, {.backend = "cpu", .memory_bytes = kMatrix});
  ASSERT_EQ(known.candidates.size(), 1u);
  EXPECT_EQ(known.candidates[0].point.label, recomputed_);
  EXPECT_NE(known.told.find("stored probabilities left out"), std::string::npos) << known.told;
}

// A row of a shorter problem does not say what a longer one takes: P grows with the square.
TEST_F(StoredChoice, MemoryOfSizesNearMeasuredOnesIsWhatTheyTake) {
  put(kStored, 1e-3, 0.1);
  const Problem longer = parse_problem("fwdbwd fp32 b1 h2 s256 d64");
  const KnownPoints known = stored_points(longer, *store_, {.backend = "cpu"});
  ASSERT_EQ(known.candidates.size(), 1u);
  EXPECT_EQ(known.candidates[0].point.memory_bytes,
            static_cast<std::int64_t>(known.candidates[0].plans.memory_bytes()));
  EXPECT_GT(known.candidates[0].point.memory_bytes, 2 * 4 * kMatrix);
}

// What dfa bench calls dynamic.
TEST_F(StoredChoice, TheTunerTakesTheFasterOfBoth) {
  measure::ProblemBuffers buffers(kProblem, "cpu", 1);
  sensors::SystemClock clock;
  const measure::Tuned tuned =
      measure::tune(buffers, {.backend = "cpu", .algorithm = Algorithm::flash, .threads = 1},
                    {.budget_s = 0.1}, clock);
  const bool stored = tuned.plans.probabilities_bytes() > 0;
  EXPECT_EQ(tuned.plans.forward->algorithm, stored ? Algorithm::standard : Algorithm::flash);
  EXPECT_EQ(tuned.plans.backward->algorithm, tuned.plans.forward->algorithm);
  EXPECT_EQ(tuned.plans.any().origin, "measured");
  EXPECT_TRUE(buffers.check(tuned.plans, {}).ok);
}

TEST_F(StoredChoice, OnePassAloneIsRefused) {
  for (const char* pass : {"fwd", "bwd"}) {
    const Problem one = parse_problem(std::string(pass) + " fp32 b1 h2 s128 d64");
    EXPECT_THROW(measure::prepare(one, {.backend = "cpu", .config = kStored}), InvalidArgument);
  }
}

// By which `dfa tune` fails: refused alternatives of what was measured are no failure.
TEST(TuneReport, OnlyRefusedIsWithoutAnyRow) {
  EXPECT_FALSE(TuneReport{}.only_refused());
  const std::vector<std::string> refused{"no memory"};
  EXPECT_TRUE(TuneReport{.refused = refused}.only_refused());
  EXPECT_FALSE((TuneReport{.measured = 1, .refused = refused}.only_refused()));
  EXPECT_FALSE((TuneReport{.kept = 1, .refused = refused}.only_refused()));
  EXPECT_FALSE((TuneReport{.wrong = 1, .refused = refused}.only_refused()));
  EXPECT_FALSE((TuneReport{.left = 1, .refused = refused}.only_refused()));
}

}  // namespace
}  // namespace dfa::run
