#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "sensors/energy_window.h"
#include "sensors/nvml/meters.h"
#include "sensors/nvml_world.h"
#include "sensors/sampler.h"
#include "temp_dir.h"

namespace dfa::nvml {
namespace {

using sensors::Energy;
using sensors::EnergyWindow;
using testing::kCard;
using testing::NvmlWorld;

std::unique_ptr<Meter> opened(const NvmlWorld& world, Gauge gauge) {
  sensors::MeterSet set = open_meter(world.card(), gauge, world);
  if (set.empty()) throw std::runtime_error(set.status.reason);
  return std::move(set.meters[0]);
}

std::string reason_of(const NvmlWorld& world, Gauge gauge) {
  const sensors::MeterSet set = open_meter(world.card(), gauge, world);
  return set.empty() ? set.status.reason : "there is a meter";
}

TEST(NvmlMeters, TheTableIsInTheOrderOfTheGauges) {
  for (const GaugeInfo& info : gauges()) EXPECT_EQ(&info_of(info.gauge), &info);
}

TEST(NvmlMeters, ReadEachValueInTheUnitOfItsQuantity) {
  const NvmlWorld world(kCard +
                        "temperature 61 72\nclocks 1.755e9 3.201e9\nutilization 99 45\n"
                        "used 5e9\nevents 4\nthrottled 0.25\n");
  const std::pair<Gauge, double> expected[] = {
      {Gauge::power, 300},          {Gauge::power_average, 300},
      {Gauge::temperature, 61},     {Gauge::memory_temperature, 72},
      {Gauge::sm_clock, 1.755e9},   {Gauge::memory_clock, 3.201e9},
      {Gauge::utilization, 99},     {Gauge::memory_utilization, 45},
      {Gauge::memory_used, 5e9},    {Gauge::clock_events, 4},
      {Gauge::hardware_too_hot, 0}, {Gauge::power_brake, 0}};
  for (const auto& [gauge, value] : expected) {
    EXPECT_DOUBLE_EQ(opened(world, gauge)->read().value().value, value) << info_of(gauge).name;
  }
}

TEST(NvmlMeters, EnergyIsInJoulesSinceOpeningAtTheMiddleOfTheCall) {
  NvmlWorld world(kCard);
  const auto energy = opened(world, Gauge::energy);  // read once, at 1.9 ms
  world.sleep_s(1);
  const Reading reading = energy->read().value();
  EXPECT_NEAR(reading.value, 300, 1e-9);
  EXPECT_NEAR(reading.time_s, 1.0057, 1e-9);
}

TEST(NvmlMeters, InstantPowerFollowsAStepAtOnceAndTheAverageInASecond) {
  NvmlWorld world(kCard + "power step 100 600 2\n");
  const auto instant = opened(world, Gauge::power);
  const auto average = opened(world, Gauge::power_average);
  world.sleep_s(2.45);
  EXPECT_NEAR(instant->read().value().value, 600, 1e-3);
  EXPECT_NEAR(average->read().value().value, 300, 1e-3);  // 0.4 s of 600 W, 0.6 s of 100 W
  world.sleep_s(0.7);
  EXPECT_NEAR(average->read().value().value, 600, 1e-3);
}

TEST(NvmlMeters, TimeUnderThePowerCapIsACounter) {
  NvmlWorld world(kCard + "throttled 0.25\n");
  const auto capped = opened(world, Gauge::power_capped);
  const double before = capped->read().value().value;
  world.sleep_s(4);
  EXPECT_NEAR(capped->read().value().value - before, 1, 1e-6);
}

TEST(NvmlMeters, ZeroWattIsNoMeasurement) {
  const NvmlWorld world(kCard + "power constant 0\ntemperature 0 0\nclocks 0 0\n");
  EXPECT_NE(reason_of(world, Gauge::power).find("0 W"), std::string::npos);
  EXPECT_NE(reason_of(world, Gauge::power_average).find("0 W"), std::string::npos);
  EXPECT_NE(reason_of(world, Gauge::temperature).find("0 C"), std::string::npos);
  EXPECT_NE(reason_of(world, Gauge::sm_clock).find("0 Hz"), std::string::npos);
}

TEST(NvmlMeters, OlderDriversAreReadThroughOlderCalls) {
  const NvmlWorld power(kCard + "field_error 185 2\n");
  EXPECT_DOUBLE_EQ(opened(power, Gauge::power_average)->read().value().value, 300);
  const NvmlWorld events(kCard + "events 32\n", "nvmlDeviceGetCurrentClocksEventReasons");
  EXPECT_DOUBLE_EQ(opened(events, Gauge::clock_events)->read().value().value, 32);
}

TEST(NvmlMeters, AReadThatFailsLaterIsNoReadingWithAReason) {
  NvmlWorld world(kCard + "power step 300 0 1\n");
  const auto power = opened(world, Gauge::power);
  EXPECT_TRUE(power->read());
  world.sleep_s(1.05);
  EXPECT_FALSE(power->read());
  EXPECT_NE(power->status().reason.find("no measurement"), std::string::npos);
}

TEST(NvmlMeters, MigHasNoPowerEnergyOrUtilizationOfOneInstance) {
  const NvmlWorld world(kCard + "mig 1\ngpm 50\n");
  EXPECT_TRUE(world.card().settings().mig);
  for (const Gauge gauge : {Gauge::energy, Gauge::power, Gauge::power_average, Gauge::utilization,
                            Gauge::tensor_active}) {
    EXPECT_NE(reason_of(world, gauge).find("MIG"), std::string::npos) << info_of(gauge).name;
  }
  EXPECT_TRUE(opened(world, Gauge::temperature)->read());
}

TEST(NvmlMeters, ActivityComesATenthOfASecondLaterAndIsThatOfItsOwnMetric) {
  NvmlWorld world(kCard + "gpm 50\n");
  const auto tensor = opened(world, Gauge::tensor_active);
  const auto dram = opened(world, Gauge::dram_active);
  EXPECT_FALSE(tensor->read());
  EXPECT_NE(tensor->status().reason.find("no value yet"), std::string::npos);
  world.sleep_s(0.11);
  EXPECT_DOUBLE_EQ(tensor->read().value().value, 55);
  EXPECT_DOUBLE_EQ(dram->read().value().value, 60);
  EXPECT_DOUBLE_EQ(tensor->read().value().value, 55);  // too early for a new one
  world.sleep_s(0.11);
  EXPECT_DOUBLE_EQ(tensor->read().value().value, 55);
}

TEST(NvmlMeters, ACardWithoutActivityCountersSaysSo) {
  const NvmlWorld world(kCard);
  EXPECT_NE(reason_of(world, Gauge::sm_active).find("Hopper"), std::string::npos);
}

TEST(NvmlMeters, BytesOverNvlinkAreOfAllLinksEachWay) {
  NvmlWorld world(kCard + "nvlink 18 18 10240000 2048000\n");
  const auto sent = opened(world, Gauge::nvlink_sent);
  const auto received = opened(world, Gauge::nvlink_received);
  const double before = sent->read().value().value;
  world.sleep_s(2);
  EXPECT_EQ(sent->quantity(), Quantity::transfer_bytes);
  EXPECT_NEAR(sent->read().value().value - before, 2 * 10240000, 1024);
  EXPECT_NEAR(received->read().value().value, 2 * 2048000, 1024);
}

TEST(NvmlMeters, ACardWithoutNvlinkSaysSoAndCountsNoZero) {
  const NvmlWorld none(kCard);
  EXPECT_NE(reason_of(none, Gauge::nvlink_sent)
                .find("NVLink: nvmlDeviceGetNvLinkState: not supported by this device"),
            std::string::npos);
  const NvmlWorld down(kCard + "nvlink 0 12\n");
  EXPECT_EQ(reason_of(down, Gauge::nvlink_received),
            "no NVLink: none of the card's 12 links is up");
  const NvmlWorld last(kCard + "nvlink 1 12\n");
  EXPECT_EQ(opened(last, Gauge::nvlink_sent)->read().value().value, 0);  // a link, and nothing sent
}

TEST(NvmlMeters, ClockEventsHaveNames) {
  EXPECT_EQ(sensors::clock_event_names(0), "none");
  EXPECT_EQ(sensors::clock_event_names(0x24), "power_cap, thermal_slowdown");
  EXPECT_EQ(sensors::clock_event_names(0x1004), "power_cap, 0x1000");
}

Energy window_of(NvmlWorld& world, double begin_s, double seconds, bool aligned = true) {
  const auto counter = opened(world, Gauge::energy);
  EnergyWindow window = aligned ? EnergyWindow({counter.get()}, world)
                                : EnergyWindow(std::vector<Meter*>{counter.get()});
  world.sleep_s(begin_s);
  window.begin();
  world.sleep_s(seconds);
  return window.end();
}

TEST(NvmlEnergy, AlignedToTicksAWindowIsRightWithinItsStatedBoundWhereverItBegins) {
  for (int i = 0; i < 20; ++i) {
    NvmlWorld world(kCard);
    const Energy energy = window_of(world, 0.3 + 0.0137 * i, 0.95 + 0.0073 * i);
    ASSERT_TRUE(energy.energy_j) << energy.reason;
    const double truth = 300 * energy.seconds;
    EXPECT_LE(std::abs(*energy.energy_j - truth), energy.uncertainty_j) << i;
    EXPECT_LT(energy.uncertainty_j, 0.025 * *energy.energy_j) << i;   // 4 reads of 1 s, not 2 ticks
    EXPECT_NEAR(std::remainder(*energy.energy_j, 30), 0, 1e-6) << i;  // whole ticks
  }
}

TEST(NvmlEnergy, NotAlignedTheBoundIsTwoTicksAndItIsNeeded) {
  double worst = 0;
  for (int i = 0; i < 20; ++i) {
    NvmlWorld world(kCard);
    const Energy energy = window_of(world, 0.3 + 0.0137 * i, 0.95, false);
    ASSERT_TRUE(energy.energy_j) << energy.reason;
    const double error = std::abs(*energy.energy_j - 300 * energy.seconds);
    EXPECT_LE(error, energy.uncertainty_j);
    worst = std::max(worst, error / *energy.energy_j);
  }
  EXPECT_GT(worst, 0.03);
}

TEST(NvmlEnergy, AlignedWindowsHoldTheTruthOfALoadThatSwings) {
  for (int i = 0; i < 10; ++i) {
    NvmlWorld world(kCard + "power sine 400 250 2\n");
    const Energy energy = window_of(world, 0.2 + 0.017 * i, 2.9);
    ASSERT_TRUE(energy.energy_j) << energy.reason;
    // The window is a whole number of ticks: 29 of them, or 30.
    const double ticks = std::round(energy.seconds / 0.1);
    EXPECT_NEAR(energy.seconds, ticks * 0.1, 0.005);
    EXPECT_NEAR(energy.power_w * energy.seconds, *energy.energy_j, 1e-6);
  }
}

TEST(NvmlEnergy, ReadingsAreCountedAndFew) {
  NvmlWorld world(kCard);
  const Energy energy = window_of(world, 0.3, 5);
  EXPECT_GE(energy.reads, 4);
  EXPECT_LE(energy.reads, 2 * (1 + 21 + 1));  // a tick of 100 ms, a read each 4.8 ms
}

TEST(NvmlEnergy, ACounterThatStandsStillIsNoEnergy) {
  NvmlWorld world(kCard + "stuck 1\n");
  const Energy energy = window_of(world, 0.3, 2);
  EXPECT_FALSE(energy.energy_j);
  EXPECT_NE(energy.reason.find("stands still"), std::string::npos) << energy.reason;
  NvmlWorld off(kCard + "power constant 0\n");
  EXPECT_FALSE(window_of(off, 0.3, 2).energy_j);
}

TEST(NvmlEnergy, ACounterThatStartsAnewIsNoEnergy) {
  for (const bool aligned : {true, false}) {
    NvmlWorld world(kCard + "reset 1\n");
    const Energy energy = window_of(world, 0.3, 2, aligned);
    EXPECT_FALSE(energy.energy_j);
    EXPECT_NE(energy.reason.find("went back"), std::string::npos) << energy.reason;
  }
}

TEST(NvmlEnergy, TheFirstReadAfterTheCounterStartedAnewIsNoneAndLaterOnesCountOn) {
  NvmlWorld world(kCard + "reset 1\n");
  const auto energy = opened(world, Gauge::energy);
  world.sleep_s(2);
  EXPECT_FALSE(energy->read());
  EXPECT_NE(energy->status().reason.find("driver was loaded anew"), std::string::npos);
  const Reading first = energy->read().value();
  world.sleep_s(1);
  EXPECT_NEAR(energy->read().value().value - first.value, 300, 1e-6);
}

TEST(NvmlEnergy, AJumpBeyondWhatTheLimitAllowsIsNoEnergy) {
  NvmlWorld world(kCard + "power constant 3000\n");
  const Energy energy = window_of(world, 0.3, 2);
  EXPECT_FALSE(energy.energy_j);
  EXPECT_NE(energy.reason.find("limit of 700 W"), std::string::npos) << energy.reason;
}

TEST(NvmlEnergy, AJumpIsSeenWhereNoLimitIsToldToo) {
  NvmlWorld world(kCard + "power constant 8000\nerror nvmlDeviceGetEnforcedPowerLimit 3\n");
  const auto energy = opened(world, Gauge::energy);
  world.sleep_s(2);
  EXPECT_FALSE(energy->read());
  EXPECT_NE(energy->break_reason().find("rose by"), std::string::npos) << energy->break_reason();
}

TEST(NvmlEnergy, TheLimitIsThatOfTheMomentOrOfTheReadingBefore) {
  const testing::TempDir tree;
  const std::string file = tree.write("settings", "limit 200\n").string();
  NvmlWorld world(kCard + "power constant 500\nsettings " + file + "\n");
  const auto energy = opened(world, Gauge::energy);
  tree.write("settings", "limit 700\n");
  world.sleep_s(2);
  EXPECT_TRUE(energy->read()) << energy->status().reason;
  tree.write("settings", "limit 200\n");
  world.sleep_s(2);
  EXPECT_TRUE(energy->read()) << energy->status().reason;
  world.sleep_s(2);
  EXPECT_FALSE(energy->read());
  EXPECT_NE(energy->status().reason.find("limit of 200 W"), std::string::npos);
}

TEST(NvmlEnergy, AfterReadsThatFailedTheCounterMayHaveStartedAnewAndPassedWhereItWas) {
  NvmlWorld world(kCard + "lost 1 3\nreset 2\n");
  const auto energy = opened(world, Gauge::energy);
  EXPECT_EQ(energy->read().value().breaks, 0);
  world.sleep_s(2);
  EXPECT_FALSE(energy->read());
  world.sleep_s(
      6);  // 1.8 kJ since the reset: more than before it, and no more than the limit allows
  EXPECT_FALSE(energy->read());
  EXPECT_NE(energy->status().reason.find("did not answer for 8.0"), std::string::npos)
      << energy->status().reason;
  EXPECT_EQ(energy->read().value().breaks, 1);
}

TEST(NvmlEnergy, WhatIsTooMuchForAFreshCounterWasCountedThroughReadsThatFailed) {
  NvmlWorld world(kCard + "lost 100001 100003\n");
  world.sleep_s(1e5);
  const auto energy = opened(world, Gauge::energy);
  world.sleep_s(2);
  EXPECT_FALSE(energy->read());
  world.sleep_s(2);
  const Reading reading = energy->read().value();
  EXPECT_NEAR(reading.value, 4 * 300, 31);
  EXPECT_EQ(reading.breaks, 0);
}

TEST(NvmlEnergy, AStandstillInsideAWindowIsSeenByWhoReadsMeanwhile) {
  NvmlWorld world(kCard + "stuck 5\n");
  const auto counter = opened(world, Gauge::energy);
  EXPECT_LE(counter->longest_gap_s(), 1);  // so the window's own thread reads as often
  EnergyWindow window(std::vector<Meter*>{counter.get()});
  window.begin();
  int readings = 0;
  for (int i = 0; i < 10; ++i) {
    world.sleep_s(1);
    readings += counter->read() ? 1 : 0;
  }
  EXPECT_EQ(readings, 6);  // it moved last between the fourth and the fifth
  EXPECT_NE(counter->break_reason().find("stands still at 2500.000 J"), std::string::npos)
      << counter->break_reason();
  const std::string first = counter->status().reason;
  world.sleep_s(1);
  EXPECT_FALSE(counter->read());
  EXPECT_EQ(counter->status().reason, first);  // one break, and one label for who collects them
  const Energy energy = window.end();
  EXPECT_FALSE(energy.energy_j);
  EXPECT_NE(energy.reason.find("stands still"), std::string::npos) << energy.reason;
}

TEST(NvmlEnergy, ManyThreadsMayReadItAndItGoesOnFromOneReadingToTheNext) {
  NvmlWorld world(kCard);
  const auto counter = opened(world, Gauge::energy);
  const double begin = counter->read().value().value;
  std::atomic<bool> done = false;
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> others;
  for (int t = 0; t < 3; ++t) {
    others.emplace_back([&] {
      for (double last = 0; !done;) {
        const auto reading = counter->read();
        if (!reading || reading->value < last || reading->breaks != 0) ++wrong;
        if (reading) last = reading->value;
        if (!counter->status()) ++wrong;
      }
    });
  }
  for (int i = 0; i < 100; ++i) world.sleep_s(0.1);
  done = true;
  others.clear();
  EXPECT_EQ(wrong, 0);
  EXPECT_NEAR(counter->read().value().value - begin, 300 * world.now_s(), 31);  // from zero on
}

TEST(NvmlEnergy, ACounterThatFailsSaysWhy) {
  const NvmlWorld world(kCard + "error nvmlDeviceGetTotalEnergyConsumption 3\n");
  EXPECT_NE(reason_of(world, Gauge::energy).find("not supported by this device"),
            std::string::npos);
}

}  // namespace
}  // namespace dfa::nvml
