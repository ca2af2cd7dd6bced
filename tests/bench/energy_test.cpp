#include "bench/energy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
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
  measure::Telemetry parts;
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
  measure::Telemetry gpu;
  gpu.energy.meters.push_back(std::make_unique<BoostingCounter>(clock));
  int runs = 0;
  const SustainedEnergy energy = measure_energy(
      [&] {
        clock.sleep_s(0.01);
        ++runs;
      },
      0.2, gpu, clock);
  EXPECT_NEAR(energy.power_avg_w, 700, 40);  // ticks are caught to milliseconds; else 800
  EXPECT_LT(energy.runs, runs);              // those before do not count
}

TEST(MeasureEnergy, WithoutCountersNothingRunsAndTheReasonIsKept) {
  FakeClock clock;
  measure::Telemetry none;
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

TEST(LargestPower, AStepAcrossABreakOfOneCounterSaysNothing) {
  EXPECT_DOUBLE_EQ(largest_power({{{0, 0, 0}, {1, 100, 0}, {2, 62000, 1}, {3, 62150, 1}},
                                  {{0, 0, 0}, {1, 10, 0}, {2, 20, 0}, {3, 30, 0}}})
                       .value(),
                   160);
  EXPECT_FALSE(largest_power({{{0, 0, 0}, {1, 100, 1}}}));
  EXPECT_FALSE(largest_power({{{0, 0}, {1, 100}}, {{0, 0}, {0, 10}}}));  // one of two is no sum
}

// Read once a second of its own time: 10 J more each time, 100 J more at the read `burst`; none at
// the read `fails`.
class BurstingCounter final : public Meter {
 public:
  BurstingCounter(int burst, int fails) : burst_(burst), fails_(fails) {}
  std::string name() const override { return "bursting"; }
  Quantity quantity() const override { return Quantity::energy_j; }
  double period_s() const override { return 1e-3; }
  Verdict status() const override { return Verdict::no("this once"); }
  std::optional<Reading> read() override {
    const int read = ++reads;
    joules_ += read == burst_ ? 100 : 10;
    if (read == fails_) return std::nullopt;
    return Reading{1.0 * read, joules_};
  }
  std::atomic<int> reads = 0;

 private:
  int burst_, fails_;
  double joules_ = 0;
};

TEST(MeasureEnergy, AReadThatFailsPutsCountersOutOfStepNoMore) {
  sensors::SystemClock clock;
  auto first = std::make_unique<BurstingCounter>(7, -1);
  const std::atomic<int>& reads = first->reads;
  measure::Telemetry host;
  host.energy.meters.push_back(std::move(first));
  host.energy.meters.push_back(std::make_unique<BurstingCounter>(8, 4));
  const SustainedEnergy energy = measure_energy(
      [&] {
        while (reads < 10) clock.sleep_s(0.005);
      },
      1e-3, host, clock);
  ASSERT_TRUE(energy.energy_j) << energy.reason;
  EXPECT_DOUBLE_EQ(energy.power_max_w.value(), 110);  // one burst at a time, not both at once
}

TEST(ShareOfTime, IsNoneWhereACounterOfTimeShowsNoShare) {
  EXPECT_DOUBLE_EQ(share_of_time({0, 3}, {2, 4}, 0.1).pct.value(), 50);
  EXPECT_DOUBLE_EQ(share_of_time({0, 3}, {2, 5.1}, 0.1).pct.value(), 100);  // by a tick
  for (const Reading& after : {Reading{2, 2.9}, Reading{2, 5.3}, Reading{2, 1e6}, Reading{0, 3}}) {
    const Share share = share_of_time({0, 3}, after, 0.1);
    EXPECT_FALSE(share.pct) << after.value;
    EXPECT_FALSE(share.reason.empty());
  }
}

}  // namespace
}  // namespace dfa::bench
