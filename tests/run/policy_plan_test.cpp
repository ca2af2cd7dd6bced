#include "run/policy_plan.h"

#include <gtest/gtest.h>

#include "dfa/error.h"
#include "measure/problem_buffers.h"
#include "run/made_up_rows.h"
#include "run/points.h"
#include "run/tune.h"
#include "temp_dir.h"

namespace dfa::run {
namespace {

// A profile of this processor with made-up times and joules: the fast one takes more.
class PolicyPlan : public ::testing::Test {
 protected:
  PolicyPlan() {
    store_ = std::make_unique<profile::Store>(folder_ / "p.db");
    const auto plans = candidate_plans(problem_, {.backend = "cpu", .candidates = 2}).plans;
    fast_ = label_of(plans.at(0));
    frugal_ = label_of(plans.at(1));
  }

  void put(const std::string& label, double time_s, std::optional<double> energy_j) {
    store_->put(made_up_row(problem_, label, time_s, energy_j));
  }
  Plan by(const std::string& policy, const Problem& problem) const {
    return policy_plan(problem, (folder_ / "p.db").string(), "cpu", power::parse_policy(policy));
  }

  const Problem problem_ = parse_problem("fwd fp32 b1 h2 s256 d64");
  const testing::TempDir folder_;
  std::unique_ptr<profile::Store> store_;
  std::string fast_, frugal_;
};

TEST_F(PolicyPlan, EachPolicyTakesItsRow) {
  ASSERT_NE(fast_, frugal_);
  put(fast_, 1e-3, 0.5);
  put(frugal_, 2e-3, 0.2);
  EXPECT_EQ(by("max_performance", problem_).config, fast_);
  EXPECT_EQ(by("min_energy", problem_).config, frugal_);
  EXPECT_EQ(by("edp", problem_).config, frugal_);
  EXPECT_EQ(by("latency:1.5ms", problem_).config, fast_);
  EXPECT_EQ(by("latency:3ms", problem_).config, frugal_);  // the cheapest that is in time
  EXPECT_NE(by("min_energy", problem_).why.find("by policy min_energy"), std::string::npos);
}

TEST_F(PolicyPlan, StridesAndScaleOfACallDoNotMatter) {
  put(frugal_, 2e-3, 0.2);
  Problem problem = parse_problem("fwd fp32 b1 h2 s256 d64 scale(0.5) layout(bshd)");
  problem.q_strides = {.batch = 256 * 384, .head = 64, .row = 384};
  const Plan plan = by("min_energy", problem);
  EXPECT_EQ(plan.config, frugal_);
  EXPECT_EQ(plan.problem.q_strides, problem.q_strides);
}

// Sizes near a measured problem's: its rows in proportion to the work, and the plan says so.
TEST_F(PolicyPlan, SizesNearThoseOfAMeasuredProblemTakeItsRows) {
  put(fast_, 1e-3, 0.5);
  put(frugal_, 2e-3, 0.2);
  const Problem wider = parse_problem("fwd fp32 b2 h3 s300 d64");
  const Plan plan = by("min_energy", wider);
  EXPECT_EQ(plan.config, frugal_);
  EXPECT_NE(plan.why.find("in proportion to '" + to_line(problem_) + "'"), std::string::npos)
      << plan.why;
  // 3 times the heads and 1.17 times each length: 4.1 times the work, 4.1 and 8.2 ms.
  EXPECT_EQ(by("latency:5ms", wider).config, fast_);
  EXPECT_THROW(by("latency:4ms", wider), Unsupported);
  EXPECT_THROW(by("min_energy", parse_problem("fwd fp32 b1 h2 s1100 d64")), Unsupported);
  EXPECT_THROW(by("min_energy", parse_problem("fwd fp32 causal b1 h2 s256 d64")), Unsupported);
  EXPECT_EQ(by("min_energy", problem_).why.find("in proportion"), std::string::npos);
}

// As a row with unordered sums is for a deterministic problem near it.
TEST_F(PolicyPlan, ARowThatNearSizesCannotHaveHidesNoOther) {
  put(fast_, 1e-3, 0.5);
  put(frugal_, 2e-3, 0.2);
  const std::size_t dim = fast_.find(".head_dim=64");
  ASSERT_NE(dim, std::string::npos) << fast_;
  std::string illegal = fast_;
  illegal.replace(dim, 12, ".head_dim=32");
  put(illegal, 0.5e-3, 0.1);
  EXPECT_EQ(by("min_energy", parse_problem("fwd fp32 b2 h3 s300 d64")).config, frugal_);
}

TEST_F(PolicyPlan, WhatTheProfileDoesNotHoldIsSaid) {
  const auto reason = [&](const std::string& policy) -> std::string {
    try {
      by(policy, problem_);
    } catch (const Unsupported& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(reason("min_energy").find("dfa tune --problem 'fwd fp32"), std::string::npos);
  put(fast_, 1e-3, std::nullopt);
  EXPECT_NE(reason("min_energy").find("measured joules"), std::string::npos);
  EXPECT_NE(reason("latency:0.1ms").find("less than 1 ms"), std::string::npos);
  EXPECT_EQ(reason("max_performance"), "");
}

// No call turns the card's clocks.
TEST_F(PolicyPlan, RowsAtLockedClocksAreNoneOfACall) {
  profile::Row locked = made_up_row(problem_, frugal_, 1.5e-3, 0.1);
  locked.point.clock_hz = 1200e6;
  store_->put(locked);
  try {
    by("min_energy", problem_);
    ADD_FAILURE();
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("at locked clocks alone"), std::string::npos);
  }
  put(fast_, 1e-3, 0.5);
  const Plan plan = by("min_energy", problem_);
  EXPECT_EQ(plan.config, fast_);
  EXPECT_NE(plan.why.find("from 1 measured configuration ("), std::string::npos) << plan.why;
}

TEST_F(PolicyPlan, ACapIsNotOfACall) {
  put(fast_, 1e-3, 0.5);
  EXPECT_THROW(by("power_cap:500W", problem_), InvalidArgument);
  EXPECT_THROW(by("temp_cap:70C", problem_), InvalidArgument);
}

}  // namespace
}  // namespace dfa::run
