#include "bench/energy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sensors/fakes.h"
#include "sensors/system_clock.h"

namespace dfa::bench {
namespace {

using dfa::testing::FakeClock;

// A counter of a part that draws a fixed power, on a clock turned by hand.
class SteadyCounter final : public Meter {
 public:
  SteadyCounter(const FakeClock& clock, double watts) : clock_(clock), watts_(watts) {}
  std::string name() const override { return "steady"; }
  Quantity quantity() const override { return Quantity::energy_j; }
  double period_s() const override { return 1e-3; }
  Verdict status() const override { return Verdict::yes(); }
  std::optional<Reading> read() override { return Reading{clock_.now, watts_ * clock_.now}; }

 private:
  const FakeClock& clock_;
  double watts_;
};

TEST(MeasureEnergy, DividesTheWindowAmongItsRuns) {
  FakeClock clock;
  Telemetry parts;
  parts.energy.meters.push_back(std::make_unique<SteadyCounter>(clock, 200));
  parts.energy.meters.push_back(std::make_unique<SteadyCounter>(clock, 50));
  const SustainedEnergy energy =
      measure_energy([&] { clock.now = clock.now + 0.25; }, 2.0, parts, clock);
  EXPECT_EQ(energy.runs, 8);
  EXPECT_DOUBLE_EQ(energy.energy_j.value(), 62.5);
  EXPECT_DOUBLE_EQ(energy.power_avg_w, 250);
  EXPECT_DOUBLE_EQ(energy.uncertainty_j, 2e-3 * 250 / 8);
}

// Of a GPU that rested: it boosts for a while above what it then settles at.
class BoostingCounter final : public Meter {
 public:
  explicit BoostingCounter(const Clock& clock) : clock_(clock), start_s_(clock.now_s()) {}
  std::string name() const override { return "boosting"; }
  Quantity quantity() const override { return Quantity::energy_j; }
  double period_s() const override { return 0.1; }
  Verdict status() const override { return Verdict::yes(); }
  std::optional<Reading> read() override {
    constexpr double kBoostS = 0.2;
    const double tick = std::floor((clock_.now_s() - start_s_) / period_s()) * period_s();
    return Reading{start_s_ + tick, 700 * tick + 200 * std::min(tick, kBoostS)};
  }

 private:
  const Clock& clock_;
  double start_s_;
};

TEST(MeasureEnergy, AGpuSettlesBeforeItsWindowBegins) {
  sensors::SystemClock clock;
  Telemetry gpu;
  gpu.energy.meters.push_back(std::make_unique<BoostingCounter>(clock));
  int runs = 0;
  const SustainedEnergy energy = measure_energy(
      [&] {
        clock.sleep_s(0.01);
        ++runs;
      },
      0.2, gpu, clock);
  EXPECT_NEAR(energy.power_avg_w, 700, 40);  // ticks are caught to milliseconds; else 800
  EXPECT_LT(energy.runs, runs);  // those before do not count
}

TEST(MeasureEnergy, WithoutCountersNothingRunsAndTheReasonIsKept) {
  FakeClock clock;
  Telemetry none;
  none.energy.status = Verdict::no("no counter here");
  int runs = 0;
  const SustainedEnergy energy = measure_energy([&] { ++runs; }, 1, none, clock);
  EXPECT_FALSE(energy.energy_j);
  EXPECT_EQ(energy.reason, "no counter here");
  EXPECT_EQ(runs, 0);
}

TEST(MeasureEnergy, TheWindowIsLongAgainstTheCountersPeriod) {
  sensors::MeterSet set;
  set.meters.push_back(std::make_unique<dfa::testing::FakeMeter>(Quantity::energy_j, 0.02));
  EXPECT_DOUBLE_EQ(energy_window_s(set), 4);
  EXPECT_DOUBLE_EQ(energy_window_s({}), 0.5);
}

TEST(LargestPower, IsThatOfTheLargestStepSummedOverTheMeters) {
  EXPECT_FALSE(largest_power({}));
  EXPECT_FALSE(largest_power({{{0, 0}}}));
  EXPECT_DOUBLE_EQ(
      largest_power({{{0, 0}, {1, 100}, {2, 300}}, {{0, 0}, {1, 10}, {2, 30}}}).value(), 220);
}

}  // namespace
}  // namespace dfa::bench
