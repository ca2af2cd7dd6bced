#include "sensors/energy_window.h"

#include <gtest/gtest.h>

#include "sensors/fakes.h"
#include "sensors/replay/replay.h"

namespace dfa::sensors {
namespace {

using testing::FakeClock;
using testing::FakeMeter;

TEST(EnergyWindow, SumsTheCountersAndOwnsUpToOnePeriodAtEachEnd) {
  FakeMeter package(Quantity::energy_j, 0.1), memory(Quantity::energy_j, 0.01);
  package.script = {{0, 1000}, {10, 3000}};  // 200 W
  memory.script = {{0, 50}, {10, 150}};      // 10 W
  EnergyWindow window({&package, &memory});
  window.begin();
  const Energy energy = window.end();
  ASSERT_TRUE(energy.energy_j);
  EXPECT_DOUBLE_EQ(*energy.energy_j, 2100);
  EXPECT_DOUBLE_EQ(energy.seconds, 10);
  EXPECT_DOUBLE_EQ(energy.uncertainty_j, 2 * 0.1 * 200 + 2 * 0.01 * 10);
}

TEST(EnergyWindow, MeasuresAReplayedTraceBetweenTwoMarks) {
  FakeClock clock;
  const MeterSet set =
      open_replay(parse_trace("time_s,p.energy_j\n0,0\n1,50\n2,100\n3,400\n4,700\n"), clock);
  EnergyWindow window({set.meters[0].get()});
  clock.now = 2.3;
  window.begin();
  clock.now = 4.3;
  const Energy energy = window.end();
  EXPECT_DOUBLE_EQ(energy.energy_j.value(), 600);
  EXPECT_DOUBLE_EQ(energy.seconds, 2);
  EXPECT_DOUBLE_EQ(energy.uncertainty_j, 600);
}

TEST(EnergyWindow, NothingMeasuredIsNoNumberButAReason) {
  EXPECT_FALSE(EnergyWindow({}).end().energy_j);
  FakeMeter counter(Quantity::energy_j);
  EnergyWindow window({&counter});
  EXPECT_EQ(window.end().reason, "the window was not begun");
  counter.script = {{0, 10}};
  window.begin();
  EXPECT_NE(window.end().reason.find("the script is over"), std::string::npos);
  counter.script = {{1, 10}, {1, 10}};
  window.begin();
  EXPECT_NE(window.end().reason.find("did not move"), std::string::npos);
}

TEST(EnergyWindow, ACounterThatBrokeOffInBetweenIsNoEnergy) {
  FakeMeter counter(Quantity::energy_j);
  counter.script = {{0, 10, 0}, {5, 900, 1}};
  EnergyWindow window({&counter});
  window.begin();
  EXPECT_FALSE(window.end().energy_j);
}

TEST(EnergyWindow, RefusesAMeterThatIsNoCounter) {
  FakeMeter power(Quantity::power_w);
  EXPECT_THROW(EnergyWindow({&power}), InvalidArgument);
}

}  // namespace
}  // namespace dfa::sensors
