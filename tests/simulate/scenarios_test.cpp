#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "dfa/error.h"
#include "simulate/metrics.h"
#include "simulate/run.h"

namespace dfa::simulate {
namespace {

std::vector<std::filesystem::path> scenario_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(DFA_SOURCE_DIR) + "/scenarios")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class ScenarioFile : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(ScenarioFile, KeepsItsBounds) {
  const Scenario scenario = read_scenario(GetParam());
  EXPECT_EQ(scenario.name, GetParam().stem());
  const auto result = run(scenario);
  const power::Metrics metrics = measure(scenario, result);
  for (const std::string& miss : missed(scenario, result, metrics)) ADD_FAILURE() << miss;
}

TEST_P(ScenarioFile, SameSeedSameTrace) {
  const Scenario scenario = read_scenario(GetParam());
  const auto a = run(scenario), b = run(scenario);
  const power::TraceHead head = head_of(scenario);
  EXPECT_EQ(power::to_trace(head, a, {}, "simulated"), power::to_trace(head, b, {}, "simulated"));
}

INSTANTIATE_TEST_SUITE_P(Files, ScenarioFile, ::testing::ValuesIn(scenario_files()),
                         [](const auto& file) { return file.param.stem().string(); });

Scenario capped(double watts, double seconds = 20) {
  Scenario scenario = read_scenario(std::string(DFA_SOURCE_DIR) + "/scenarios/cap_step.json");
  scenario.events.clear();
  scenario.policy = {power::Goal::power_cap, watts};
  scenario.seconds = seconds;
  return scenario;
}

// Bounds that nobody could keep are missed: the ruler measures.
TEST(MetricBounds, AreMissedWhereTheyShould) {
  Scenario scenario = capped(500);
  scenario.bounds = {};
  scenario.bounds.work_vs_pacing = 3;
  scenario.bounds.status = "infeasible";
  scenario.bounds.power_deviation_w = 1e-6;
  const auto result = run(scenario);
  EXPECT_EQ(missed(scenario, result, measure(scenario, result)).size(), 3u);
  scenario.bounds = {.violation_pct = 1, .overshoot_pct = 2, .settling_s = 1};
  auto blind = run([&] {
    Scenario free = scenario;
    free.policy = {power::Goal::max_performance, 0};
    return free;
  }());
  for (power::TraceSample& sample : blind.samples)
    sample.cap_w = 500;  // held against a cap it never knew
  EXPECT_EQ(missed(scenario, blind, measure(scenario, blind)).size(), 3u);
}

TEST(Caps, AnyReachableCapIsHeld) {
  for (double watts = 160; watts <= 690; watts += 10) {
    const Scenario scenario = capped(watts, 12);
    const auto result = run(scenario);
    const power::Metrics m = measure(scenario, result);
    EXPECT_LE(*m.violation_pct, 1) << watts;
    EXPECT_LE(*m.overshoot_pct, 2) << watts;
    EXPECT_GT(m.mean_power_w, 0.93 * std::min(watts, 640.0)) << watts;  // what is allowed is used
  }
}

// What the card tends to at the levers' least is told, once it is clear and while it holds alone.
TEST(Temperature, ACapThatCannotBeHadIsToldWithWhatCan) {
  const Scenario scenario =
      read_scenario(std::string(DFA_SOURCE_DIR) + "/scenarios/temp_unreachable.json");
  ASSERT_EQ(scenario.events.size(), 2u);
  const double hot = scenario.events[0].at_s, cool = scenario.events[1].at_s;
  const auto result = run(scenario);
  double settled_c = 0, first = 1e9, last = 0;
  for (const power::TraceSample& sample : result.samples) {
    if (sample.time_s < cool) settled_c = sample.temp_c;
  }
  for (const power::Decision& decision : result.decisions) {
    if (decision.status != power::PolicyStatus::infeasible) continue;
    first = std::min(first, decision.time_s);
    last = std::max(last, decision.time_s);
    ASSERT_TRUE(decision.reachable);
    if (decision.time_s > cool - 10) {
      EXPECT_NEAR(*decision.reachable, settled_c, 2);
    }
    EXPECT_GT(*decision.reachable, scenario.policy.value) << decision.time_s;
  }
  EXPECT_GT(first, hot);
  EXPECT_LT(first, hot + 30);
  EXPECT_GT(last, cool - 1);
  EXPECT_LT(last, cool + 30);
}

// Two points whose watts lie on both sides of what the cap allows: a switch heats by degrees within
// a second, so that choosing by the budget of the moment alone switches every second.
TEST(Temperature, PointsDoNotSwitchBackAndForth) {
  Scenario scenario = read_scenario(std::string(DFA_SOURCE_DIR) + "/scenarios/temp_steps.json");
  scenario.seconds = 240;
  for (double load = 0.35; load < 1.35; load += 0.05) {
    scenario.events.assign(1, Event{});
    scenario.events[0].load_factor = load;
    const auto result = run(scenario);
    const power::Metrics m = measure(scenario, result);
    EXPECT_LE(m.switches_per_minute, 3) << load;
    EXPECT_LE(*m.temp_over_c, 1) << load;
    EXPECT_EQ(m.infeasible_pct, 0) << load;
  }
}

// What the same watts buy: work a joule, of that at full speed. docs/design/0028-privileges.md
TEST(LentLevers, AtOnePowerTheCardsOwnLeversDoMoreWorkThanGaps) {
  Scenario scenario = read_scenario(std::string(DFA_SOURCE_DIR) + "/scenarios/lent_levers.json");
  scenario.events.clear();
  scenario.bounds = {};
  const auto work_per_j = [&](const char* policy, double watts) {
    scenario.policy = power::parse_policy(policy);
    const power::Metrics m = measure(scenario, run(scenario));
    EXPECT_NEAR(m.mean_power_w, watts, 0.02 * watts) << policy;
    return m.work_per_j;
  };
  const double free = work_per_j("max_performance", 700);
  EXPECT_NEAR(work_per_j("limit:450W", 450) / free, 0.95, 0.01);
  EXPECT_NEAR(work_per_j("power_cap:450W", 441) / free, 0.94, 0.01);  // by the limit
  EXPECT_NEAR(work_per_j("clock:1125MHz", 450) / free, 0.95, 0.01);
  scenario = pacing_only(scenario);
  EXPECT_NEAR(work_per_j("power_cap:450W", 445) / free, 0.71, 0.01);
  EXPECT_THROW(work_per_j("limit:450W", 450), Unsupported);
}

// What is learned of a card at full clocks holds after them.
TEST(LentLevers, WhatALockedClockDrawsIsNoBiasOfTheCard) {
  Scenario scenario = read_scenario(std::string(DFA_SOURCE_DIR) + "/scenarios/lent_levers.json");
  scenario.policy = power::parse_policy("clock:1200MHz");
  const auto result = run(scenario);
  for (const power::Decision& decision : result.decisions) {
    EXPECT_NEAR(decision.bias, 1, 0.05) << decision.time_s;
    EXPECT_EQ(decision.predicted_w.has_value(), decision.time_s >= 8 - 1e-9);
  }
  EXPECT_EQ(missed(scenario, result, measure(scenario, result)), std::vector<std::string>{});
}

TEST(LentLevers, ACapHeldByTheLimitIsHeld) {
  Scenario scenario = read_scenario(std::string(DFA_SOURCE_DIR) + "/scenarios/lent_levers.json");
  scenario.events.clear();
  scenario.bounds.work_vs_pacing = 1;  // so that it is measured
  scenario.seconds = 240;  // at 210 W the lowest clock draws more, which takes two seconds to see
  for (const double watts : {210, 300, 450, 600, 690}) {
    scenario.policy = power::Policy::power_cap(watts);
    const power::Metrics m = measure(scenario, run(scenario));
    EXPECT_LE(*m.violation_pct, 1) << watts;
    EXPECT_GE(*m.work_vs_pacing, watts < 650 ? 1.1 : 0.98) << watts;
  }
}

// What joules, time and caps buy where a profile has several clocks and they are lent.
// docs/design/0028-privileges.md
Scenario lent_clocks(const char* policy) {
  Scenario scenario = read_scenario(std::string(DFA_SOURCE_DIR) + "/scenarios/lent_clocks.json");
  scenario.events.clear();
  scenario.bounds = {};
  scenario.seconds = 20;
  scenario.policy = power::parse_policy(policy);
  return scenario;
}

double mhz_at(const power::Trace& trace, double time_s) {
  double hz = 0;
  for (const power::Decision& decision : trace.decisions) {
    if (decision.time_s <= time_s) hz = decision.action.clock_hz;
  }
  return hz * 1e-6;
}

TEST(LentClocks, EachPolicyChoosesItsClock) {
  struct Row {
    const char* policy;
    double mhz, work_per_j, watts, work_per_s;  // the last three of those at full speed
  };
  const auto at = [](const char* policy) {
    const auto result = run(lent_clocks(policy));
    return std::pair(result, measure(lent_clocks(policy), result));
  };
  const auto [full, full_metrics] = at("max_performance");
  for (const Row& row :
       {Row{"min_energy", 1815, 1.06, 649, 0.98}, Row{"edp", 1815, 1.06, 649, 0.98},
        Row{"latency:2.9ms", 1815, 1.06, 649, 0.98}, Row{"latency:2.2ms", 0, 1, 704, 1},
        Row{"power_cap:600W", 1740, 1.04, 593, 0.87}, Row{"power_cap:450W", 1110, 0.94, 445, 0.60},
        Row{"power_cap:300W", 1110, 0.76, 297, 0.32}}) {
    const auto [result, metrics] = at(row.policy);
    EXPECT_NEAR(mhz_at(result, 19), row.mhz, 0.5) << row.policy;
    EXPECT_NEAR(metrics.work_per_j / full_metrics.work_per_j, row.work_per_j, 0.01) << row.policy;
    EXPECT_NEAR(metrics.mean_power_w, row.watts, 3) << row.policy;
    EXPECT_NEAR(result.work / full.work, row.work_per_s, 0.01) << row.policy;
  }
}

TEST(LentClocks, WithoutALeaseTheSameProfileRunsAtTheCardsOwnClock) {
  for (const char* policy : {"min_energy", "latency:2.9ms", "power_cap:450W"}) {
    Scenario scenario = lent_clocks(policy);
    scenario.levers.clock_most_hz = 0;
    const auto result = run(scenario);
    for (const power::Decision& decision : result.decisions) {
      ASSERT_EQ(decision.action.clock_hz, 0) << policy;
    }
  }
}

TEST(LentClocks, AnEndedLeaseIsFollowedAtOnceAndACapHeldOn) {
  for (const char* policy : {"min_energy", "power_cap:450W"}) {
    Scenario scenario = lent_clocks(policy);
    scenario.events = {{.at_s = 8, .note = "ends", .lent = false},
                       {.at_s = 14, .note = "again", .lent = true}};
    scenario.bounds = {.overshoot_pct = 2};
    const auto result = run(scenario);
    EXPECT_GT(mhz_at(result, 7.99), 0) << policy;
    for (double time_s = 8; time_s < 13.99; time_s += 0.1) {
      ASSERT_EQ(mhz_at(result, time_s), 0) << policy << " " << time_s;
    }
    EXPECT_GT(mhz_at(result, 15), 0) << policy;
    if (!scenario.policy.is_cap()) continue;
    const power::Metrics m = measure(scenario, result);
    EXPECT_EQ(missed(scenario, result, m), std::vector<std::string>{});
    EXPECT_LE(*m.settling_s, 0.3);
  }
}

// Any cap, with a profile that says a fifth more or less than is true: no worse than by gaps alone.
TEST(LentClocks, AnyReachableCapIsHeld) {
  for (const double error : {-0.2, 0.0, 0.2}) {
    for (double watts = 160; watts <= 690; watts += 30) {
      Scenario scenario = lent_clocks("min_energy");
      scenario.policy = power::Policy::power_cap(watts);
      scenario.profile_error = error;
      scenario.bounds.work_vs_pacing = 1;  // so that it is measured
      const auto result = run(scenario);
      const power::Metrics m = measure(scenario, result);
      const power::Metrics gaps = measure(pacing_only(scenario), run(pacing_only(scenario)));
      EXPECT_LE(*m.violation_pct, std::max(1.0, *gaps.violation_pct)) << watts << " " << error;
      EXPECT_LE(*m.overshoot_pct, std::max(2.0, *gaps.overshoot_pct)) << watts << " " << error;
      EXPECT_LE(m.switches_per_minute, 12) << watts << " " << error;
      EXPECT_GE(*m.work_vs_pacing, 1.25) << watts << " " << error;
    }
  }
}

TEST(LentClocks, DegreesDoNotMakeThemHunt) {
  Scenario scenario = read_scenario(std::string(DFA_SOURCE_DIR) + "/scenarios/temp_steps.json");
  const Scenario clocks = lent_clocks("min_energy");
  scenario.levers.clock_least_hz = clocks.levers.clock_least_hz;
  scenario.levers.clock_most_hz = clocks.levers.clock_most_hz;
  scenario.clocks_hz = clocks.clocks_hz;
  scenario.seconds = 240;
  for (double load = 0.35; load < 1.35; load += 0.1) {
    scenario.events.assign(1, Event{});
    scenario.events[0].load_factor = load;
    const power::Metrics m = measure(scenario, run(scenario));
    EXPECT_LE(m.switches_per_minute, 3) << load;
    EXPECT_LE(*m.temp_over_c, 1) << load;
  }
}

// Steadier than the firmware's own cap.
TEST(Caps, PowerIsSteadierThanWithout) {
  const auto deviation = [](const Scenario& scenario) {
    auto result = run(scenario);
    for (power::TraceSample& sample : result.samples) sample.cap_w = 700;
    return *measure(scenario, result).power_deviation_w;
  };
  Scenario free = capped(680);
  free.policy = {power::Goal::max_performance, 0};
  free.points.resize(1);
  Scenario held = capped(640);
  held.points.resize(1);
  EXPECT_LT(deviation(held), 0.5 * deviation(free));
}

// scenarios/e4m3.json: which point ran in a second, by its label.
std::string ran_at(const power::Trace& trace, double time_s) {
  std::size_t point = 0;
  for (const power::Decision& decision : trace.decisions) {
    if (decision.time_s <= time_s) point = decision.action.point;
  }
  return trace.setup.points[point].label;
}

TEST(Precision, E4m3RunsWhileItsErrorsAreWithinTheBoundWhateverThePolicy) {
  Scenario scenario = read_scenario(std::string(DFA_SOURCE_DIR) + "/scenarios/e4m3.json");
  ASSERT_EQ(scenario.events.size(), 3u);
  scenario.events.pop_back();  // the policy's
  scenario.bounds = {.inexact_s = 0.4};
  for (const char* policy : {"power_cap:450W", "min_energy", "edp", "latency:8ms"}) {
    scenario.policy = power::parse_policy(policy);
    const auto result = run(scenario);
    EXPECT_EQ(ran_at(result, 5), "e4m3") << policy;
    EXPECT_EQ(ran_at(result, 13), "e4m3") << policy;
    EXPECT_EQ(ran_at(result, 15), "bf16") << policy;
    EXPECT_EQ(ran_at(result, 24), "bf16") << policy;
    const power::Metrics m = measure(scenario, result);
    EXPECT_GT(m.inexact_s.value_or(0), 0) << policy;  // between checks
    EXPECT_EQ(missed(scenario, result, m), std::vector<std::string>{}) << policy;
  }
}

TEST(Precision, APointBeyondTheBoundNeverRunsAndWithoutABoundNobodyWatches) {
  Scenario scenario = read_scenario(std::string(DFA_SOURCE_DIR) + "/scenarios/e4m3.json");
  scenario.max_error = 0.04;
  const auto exact = run(scenario);
  for (const power::Decision& decision : exact.decisions) EXPECT_EQ(decision.action.point, 0u);
  EXPECT_EQ(exact.inexact_s, 0);
  scenario.max_error.reset();
  const auto free = run(scenario);
  EXPECT_EQ(ran_at(free, 24), "e4m3");
  for (const power::Decision& decision : free.decisions) EXPECT_FALSE(decision.error);
  EXPECT_FALSE(free.inexact_s);
  EXPECT_FALSE(measure(scenario, free).inexact_s);
}

// A governor that hears of no error stays, which the metric has to show.
TEST(Precision, OutputsBeyondTheBoundAreMeasured) {
  Scenario scenario = read_scenario(std::string(DFA_SOURCE_DIR) + "/scenarios/e4m3.json");
  scenario.points = {scenario.points[1]};  // then there is none to step up to
  const auto result = run(scenario);
  const power::Metrics m = measure(scenario, result);
  EXPECT_NEAR(*m.inexact_s, 9.9, 0.05);
  EXPECT_GT(m.infeasible_pct, 30);
  EXPECT_EQ(missed(scenario, result, m).size(), 2u);
}

// As files before the name changed have it.
TEST(Scenario, MarksAreBoundsOfMetrics) {
  const std::string head =
      R"({"schema":"dfa-scenario/1","points":[{"dynamic_w":1,"work_per_s":1}],)";
  for (const char* key : {"metrics", "marks"}) {
    const Scenario scenario = parse_scenario(head + '"' + key + R"(":{"overshoot_pct":3}})");
    EXPECT_EQ(scenario.bounds.overshoot_pct, 3) << key;
  }
}

TEST(Scenario, BadFilesAreNamed) {
  const std::string head =
      R"({"schema":"dfa-scenario/1","points":[{"dynamic_w":1,"work_per_s":1}],)";
  for (const char* good : {R"("levers":{"clock_least_hz":345e6,"clock_most_hz":1980e6}})",
                           R"("levers":{"sm_count":132,"sm_least":1,"limit_most_w":700,)"
                           R"("limit_least_w":200,"duty_least":1}})"}) {
    EXPECT_NO_THROW(parse_scenario(head + good)) << good;
  }
  for (const char* bad : {R"("policy":"fast"})",
                          R"("secunds":5})",
                          R"("seconds":"5"})",
                          R"("seconds":-1})",
                          R"("events":[{"at_s":5},{"at_s":2}]})",
                          R"("events":[{"whom":1}]})",
                          R"("events":3})",
                          R"("metrics":{"x":1}})",
                          R"("policy":"clock:1200MHz","metrics":{"work_vs_pacing":1}})",
                          R"("marks":{"x":1}})",
                          R"("metrics":{},"marks":{}})",
                          R"("levers":{"clock_hz":1}})",
                          R"("levers":{"clock_least_hz":1.5e9,"clock_most_hz":1.2e9}})",
                          R"("levers":{"clock_least_hz":1.5e9}})",
                          R"("levers":{"clock_least_hz":345,"clock_most_hz":1980}})",
                          R"("levers":{"limit_least_w":600,"limit_most_w":300}})",
                          R"("levers":{"limit_least_w":-5,"limit_most_w":300}})",
                          R"("levers":{"duty_least":0}})",
                          R"("levers":{"duty_least":2}})",
                          R"("levers":{"sm_count":-5}})",
                          R"("levers":{"sm_count":4294967428}})",
                          R"("levers":{"sm_count":500}})",
                          R"("levers":{"sm_count":132,"sm_step":0}})",
                          R"("levers":{"sm_count":132,"sm_least":200}})",
                          R"("card":{"sm_count":0}})",
                          R"("card":{"instant_noise":-1}})",
                          R"("profile_error":-1})",
                          R"("clocks_hz":1e9})",
                          R"("clocks_hz":["1e9"]})",
                          R"("clocks_hz":[1200]})",
                          R"("rack":{"budget_w":9},"clocks_hz":[1e9]})",
                          R"("events":[{"at_s":1,"lent":1}]})",
                          R"("card":[]})",
                          R"("seed":-1})",
                          R"("max_error":0})",
                          R"("metrics":{"inexact_s":1}})",
                          R"("events":[{"at_s":1,"error_factor":0}]})",
                          R"("events":[{"at_s":1,"budget_w":9}]})",
                          R"("rack":{"budget_w":9},"max_error":0.1})",
                          R"("rack":{"budget_w":9},"events":[{"at_s":1,"load_factor":2}]})"}) {
    EXPECT_THROW(parse_scenario(head + bad), InvalidArgument) << bad;
  }
  EXPECT_THROW(parse_scenario("{"), InvalidArgument);
  EXPECT_THROW(parse_scenario(R"({"schema":"dfa-scenario/2"})"), InvalidArgument);
  EXPECT_THROW(parse_scenario(R"({"schema":"dfa-scenario/1"})"), InvalidArgument);  // no points
  EXPECT_THROW(read_scenario("/nowhere"), IoError);
}

}  // namespace
}  // namespace dfa::simulate
