#include "sensors/replay/replay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

#include "power/governor.h"
#include "power/pacer.h"

// Readings recorded on a card, played to the governor as they came.
namespace dfa::power {
namespace {

class HandClock final : public Clock {
 public:
  double now_s() const override { return now; }
  void sleep_s(double seconds) override { now += seconds; }
  double now = 0;
};

std::vector<sensors::TraceColumn> recorded_power() {
  std::ifstream file(std::string(DFA_SOURCE_DIR) + "/tests/data/h200/step_response.csv");
  std::string line, csv = "time_s,nvml:power.power_w\n";
  std::getline(file, line);
  while (std::getline(file, line)) {
    const std::size_t first = line.find(','), second = line.find(',', first + 1);
    csv += line.substr(0, second) + "\n";
  }
  return sensors::parse_trace(csv);
}

TEST(Replay, TheRecordedStepIsSeenAndAnsweredAtItsFirstReading) {
  HandClock clock;
  const auto columns = recorded_power();
  const auto set = sensors::open_replay(columns, clock);
  ASSERT_EQ(set.meters.size(), 1u);
  dfa::power::Setup setup;
  setup.points = {{.label = "product", .time_s = 1e-3, .power_w = 690}};
  setup.idle_w = 125;
  setup.limit_w = 700;
  Pacer pacer;
  Governor governor(setup, {Goal::power_cap, 650}, {.power = set.meters[0].get()}, pacer);
  double lowered_s = 0;
  int readings = 0;
  for (; clock.now < 6.4; clock.now += 0.01) {
    const bool busy = clock.now > 1.0 && clock.now < 4.0;
    const auto made = governor.tick(clock.now, {.busy = busy});
    if (!made) continue;
    if (made->power_w) ++readings;
    ASSERT_TRUE(std::isfinite(made->level));
    ASSERT_GE(made->level, least_level(governor.setup().levers));
    ASSERT_LE(made->level, 1);
    if (lowered_s == 0 && made->power_w.value_or(0) > 800) lowered_s = clock.now;
  }
  EXPECT_NEAR(lowered_s, 1.1, 0.03);  // 824 W, the first reading of the load
  EXPECT_GT(readings, 50);
  // The record does not answer: the load goes on above the cap, so the level ends low.
  EXPECT_LT(governor.state().level, 0.5);
}

// A card that gaps cool from 54 C: the last degree took 15 s, in which the sensor went to and fro.
TEST(Replay, WhatARecordedCoolingTendsToIsTold) {
  std::ifstream file(std::string(DFA_SOURCE_DIR) + "/tests/data/h200/cooling.csv");
  std::string line;
  std::getline(file, line);
  std::vector<std::pair<double, double>> degrees;
  char comma = 0;
  for (double time_s = 0, temp_c = 0; file >> time_s >> comma >> temp_c;) {
    degrees.emplace_back(time_s, temp_c);
  }
  ASSERT_GT(degrees.size(), 10u);
  const double tends_to_c = 46.3;  // tests/data/h200/README.md

  dfa::power::Setup setup;
  setup.points = {{.label = "forward", .time_s = 1e-3, .power_w = 690}};
  setup.idle_w = 130;
  setup.limit_w = 700;
  setup.levers.duty_least = 0.1;
  State state;
  Decision last;
  std::size_t row = 0;
  for (double now = -20; now < 25; now += 0.1) {  // first at 54 C, until the budget is at its least
    while (row + 1 < degrees.size() && degrees[row + 1].first <= now) ++row;
    const double watts = predicted_power(setup, state, 0, state.level);
    const ControlStep made =
        step(state,
             {.time_s = now + 20, .power = Reading{now + 20, watts}, .temp_c = degrees[row].second},
             {Goal::temp_cap, 30}, setup);
    state = made.state;
    last = made.decision;
  }
  EXPECT_EQ(last.status, PolicyStatus::infeasible);
  ASSERT_TRUE(last.reachable);
  EXPECT_NEAR(*last.reachable, tends_to_c, 3);
}

}  // namespace
}  // namespace dfa::power
