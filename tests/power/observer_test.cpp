#include <gtest/gtest.h>

#include "power/governor.h"
#include "sensors/fakes.h"

namespace dfa::power {
namespace {

using testing::FakeMeter;

// What an observer makes of counters alone, reading after reading.
std::vector<Observation> seen_of(std::vector<Meter*> counters, int times) {
  Observer observer({.energy = std::move(counters)});
  std::vector<Observation> seen;
  for (int i = 0; i < times; ++i) seen.push_back(observer.observe(i, {}));
  return seen;
}

TEST(Observer, PowerIsThatOfAllCounters) {
  FakeMeter first(Quantity::energy_j), second(Quantity::energy_j);
  first.script = {{0, 0}, {1, 100}, {2, 250}};
  second.script = {{0.2, 7}, {1.2, 57}, {2.2, 107}};
  const auto seen = seen_of({&first, &second}, 3);
  EXPECT_FALSE(seen[0].power);
  EXPECT_DOUBLE_EQ(seen[1].power.value().value, 150);
  EXPECT_DOUBLE_EQ(seen[1].power.value().time_s, 1.1);
  EXPECT_DOUBLE_EQ(seen[2].power.value().value, 200);
}

TEST(Observer, OneCounterThatSaysNothingLeavesNoSumOfTheOthers) {
  FakeMeter first(Quantity::energy_j), second(Quantity::energy_j);
  first.script = {{0, 0}, {1, 100}, {2, 200}};
  second.script = {{0, 0}, {1, 100}};
  const auto seen = seen_of({&first, &second}, 3);
  EXPECT_DOUBLE_EQ(seen[1].power.value().value, 200);
  EXPECT_FALSE(seen[2].power);
  EXPECT_EQ(seen[2].unread, "fake: the script is over");
}

TEST(Observer, NoPowerIsMadeUpAcrossABreakOfACounter) {
  FakeMeter counter(Quantity::energy_j), steady(Quantity::energy_j);
  counter.script = {{0, 0, 0}, {1, 100, 0}, {2, 62000, 1}, {3, 62100, 1}};
  steady.script = {{0, 0}, {1, 100}, {2, 200}, {3, 300}};
  const auto seen = seen_of({&steady, &counter}, 4);
  EXPECT_DOUBLE_EQ(seen[1].power.value().value, 200);
  EXPECT_FALSE(seen[2].power);
  EXPECT_FALSE(seen[2].unread.empty());
  EXPECT_DOUBLE_EQ(seen[3].power.value().value, 200);
}

TEST(Observer, CountersThatStandStillAreNoReadingAfterAWhile) {
  FakeMeter counter(Quantity::energy_j, 0.1);
  counter.script = {{0, 0}, {1, 100}, {1.5, 100}, {3, 100}};
  const auto seen = seen_of({&counter}, 4);
  EXPECT_DOUBLE_EQ(seen[2].power.value().time_s, 1);  // the same as before
  EXPECT_FALSE(seen[3].power);
  EXPECT_NE(seen[3].unread.find("stand still since 2.0 s"), std::string::npos) << seen[3].unread;
}

power::Setup unread_card() {
  power::Setup setup;
  setup.points = {{.label = "only", .time_s = 1e-3, .power_w = 600}};
  setup.idle_w = 100;
  setup.limit_w = 700;
  return setup;
}

TEST(Observer, WhyThereIsNoReadingIsInTheDecision) {
  const power::Setup setup = unread_card();
  const ControlStep made =
      step(step({}, {.time_s = 1}, {Goal::power_cap, 400}, setup).state,
           {.time_s = 2, .unread = "fake: it broke off"}, {Goal::power_cap, 400}, setup);
  EXPECT_EQ(made.decision.status, PolicyStatus::stale);
  EXPECT_NE(made.decision.why.find("(fake: it broke off)"), std::string::npos) << made.decision.why;
}

}  // namespace
}  // namespace dfa::power
