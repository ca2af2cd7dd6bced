#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "sensors/energy_window.h"
#include "sensors/simulated/gpu.h"
#include "sensors/simulated/meters.h"

namespace dfa::simulated {
namespace {

Load attention(double sms = 132, double duty = 1) {
  return {.dynamic_w = 750, .work_per_s = 490, .sms = sms, .duty = duty};
}

// Mean power of the second from `from_s` after the load began.
double mean_power(const Load& load, double from_s = 2, double seconds = 5) {
  Gpu gpu({}, 1);
  gpu.set_load(load);
  gpu.advance(from_s);
  const double before = gpu.energy_j();
  gpu.advance(seconds);
  return (gpu.energy_j() - before) / seconds;
}

// The parameters are those that the fit printed.
TEST(SimulatedGpu, ParametersAreTheFitted) {
  std::ifstream file(std::string(DFA_SOURCE_DIR) + "/results/tables/simulated_fit_h200.txt");
  ASSERT_TRUE(file);
  const CardParameters card;
  const std::map<std::string, double> used = {{"leakage_w_per_c", card.leakage_w_per_c},
                                              {"voltage_floor", card.voltage_floor},
                                              {"voltage_slope", card.voltage_slope},
                                              {"contention", card.contention},
                                              {"burst", card.burst},
                                              {"second_reference", card.second_reference},
                                              {"second_gain", card.second_gain},
                                              {"cap_filter_s", card.cap_filter_s},
                                              {"cap_gain_hz_per_w", card.cap_gain_hz_per_w},
                                              {"cap_down_hz", card.cap_down_hz},
                                              {"cap_up_hz", card.cap_up_hz},
                                              {"inlet_c", card.inlet_c}};
  std::size_t compared = 0, pole = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, unit;
    double value = 0, time_s = 0;
    if (!(words >> name >> value)) continue;
    if (name == "pole" && words >> unit >> time_s) {
      ASSERT_LT(pole, card.poles.size());
      EXPECT_DOUBLE_EQ(card.poles[pole].c_per_w, value);
      EXPECT_DOUBLE_EQ(card.poles[pole++].time_s, time_s);
    }
    const auto found = used.find(name);
    if (found == used.end()) continue;
    EXPECT_DOUBLE_EQ(found->second, value) << name;
    ++compared;
  }
  EXPECT_EQ(compared, used.size());
  EXPECT_EQ(pole, card.poles.size());
}

TEST(SimulatedGpu, SameSeedSameBits) {
  Gpu a({}, 7), b({}, 7), c({}, 8);
  bool differs = false;
  for (int i = 0; i < 50; ++i) {
    for (Gpu* gpu : {&a, &b, &c}) {
      gpu->set_load(attention(i % 2 == 0 ? 132 : 40));
      gpu->advance(0.1);
    }
    EXPECT_EQ(a.instant_power()->value, b.instant_power()->value);
    EXPECT_EQ(a.energy_j(), b.energy_j());
    differs = differs || a.instant_power()->value != c.instant_power()->value;
  }
  EXPECT_TRUE(differs);
}

// Steps of any length lead to the same place.
TEST(SimulatedGpu, AdvancingInPiecesChangesNothing) {
  Gpu whole({}, 1), pieces({}, 1);
  whole.set_load(attention());
  pieces.set_load(attention());
  whole.advance(3);
  for (int i = 0; i < 600; ++i) pieces.advance(0.005);
  EXPECT_EQ(whole.energy_j(), pieces.energy_j());
  EXPECT_EQ(whole.temp_c(), pieces.temp_c());
}

TEST(SimulatedGpu, FirmwareHoldsTheLimitOnAverage) {
  EXPECT_NEAR(mean_power({.dynamic_w = 1000}), 695, 12);
  EXPECT_NEAR(mean_power({.dynamic_w = 2000}), 695, 25);
  EXPECT_NEAR(mean_power(attention(64)), 511, 12);  // below the cap: as drawn
}

TEST(SimulatedGpu, MoreLoadMorePower) {
  double before = 0;
  for (const double sms : {0.0, 16.0, 32.0, 48.0, 64.0, 80.0}) {
    const double now = mean_power(attention(sms));
    EXPECT_GT(now, before + 30);
    before = now;
  }
  EXPECT_LT(mean_power(attention(132, 0.25)), mean_power(attention(132, 0.5)) - 100);
}

// Pacing a capped load gives the clock back: less is lost than was paused.
TEST(SimulatedGpu, PacingFreesTheClock) {
  const auto work = [](double duty) {
    Gpu gpu({}, 1);
    gpu.set_load(attention(132, duty));
    gpu.advance(10);
    return gpu.work();
  };
  EXPECT_GT(work(0.9) / work(1), 0.91);
  EXPECT_LT(work(0.9) / work(1), 0.96);
}

TEST(SimulatedGpu, ItsLimitAndItsClockMayBeSet) {
  Gpu gpu({}, 1);
  gpu.set_load(attention(64));
  gpu.set_limit(450);
  gpu.advance(3);
  const double before = gpu.energy_j();
  gpu.advance(5);
  EXPECT_NEAR((gpu.energy_j() - before) / 5, 450, 5);
  gpu.set_limit(700);
  gpu.lock_clock(1201e6);
  const double capped = gpu.capped_s();
  gpu.advance(3);
  EXPECT_EQ(gpu.clock_hz(), 1200e6);        // in its steps
  EXPECT_LT(gpu.capped_s() - capped, 1.1);  // a clock that was asked for is no cap
  gpu.lock_clock(0);
  gpu.advance(3);
  EXPECT_GT(gpu.clock_hz(), 1400e6);
}

TEST(SimulatedGpu, CounterIsTheIntegralUpToATick) {
  Gpu gpu({}, 1);
  gpu.set_load(attention(70, 0.8));
  for (int i = 0; i < 100; ++i) {
    gpu.advance(0.037);
    EXPECT_LE(gpu.energy_counter()->value, gpu.energy_j() + 1e-9);
    EXPECT_GE(gpu.energy_counter()->value, gpu.energy_j() - 0.1 * 720);
  }
}

// The sensor looks at a quarter of the time: a load that swings in its rhythm fools it, the counter
// not.
TEST(SimulatedGpu, InstantPowerAliases) {
  Gpu gpu({}, 1);
  for (int i = 0; i < 20; ++i) {
    gpu.set_load(attention());
    gpu.advance(0.05);
    gpu.set_load({});
    gpu.advance(0.05);
  }
  const double mean = gpu.energy_j() / gpu.now_s();
  EXPECT_LT(gpu.instant_power()->value, 0.5 * mean);
  EXPECT_NEAR(gpu.average_power()->value, mean, 0.03 * mean);
}

TEST(SimulatedGpu, AverageIsOfASecond) {
  Gpu gpu({}, 1);
  gpu.advance(2);
  gpu.set_load(attention(64));
  gpu.advance(0.5);
  EXPECT_NEAR(gpu.average_power()->value, (125 + 505) / 2.0, 12);
  gpu.advance(0.5);
  EXPECT_NEAR(gpu.average_power()->value, 505, 12);
}

TEST(SimulatedGpu, HotInletHeatsAndLeaks) {
  Gpu cool({}, 1), hot({}, 1);
  hot.set_inlet(50);
  for (Gpu* gpu : {&cool, &hot}) {
    gpu->set_load(attention(64));
    gpu->settle();
    gpu->advance(5);
  }
  EXPECT_NEAR(hot.temp_c() - cool.temp_c(), 17.7, 1);
  EXPECT_GT(hot.power_w(), cool.power_w() + 1);
}

TEST(SimulatedGpu, TemperatureIsWholeDegrees) {
  Gpu gpu({}, 1);
  gpu.set_load(attention());
  gpu.advance(1.23);
  const double shown = gpu.temperature()->value;
  EXPECT_EQ(shown, std::floor(shown));
}

TEST(SimulatedGpu, FaultsAreWhatTheySay) {
  Gpu gpu({}, 1);
  gpu.set_load(attention(64));
  gpu.advance(1);
  const auto set = open_meter(gpu, Gauge::power);
  Meter& power = *set.meters.front();
  ASSERT_TRUE(power.read());
  gpu.set_faults({.outage = true});
  EXPECT_FALSE(power.read());
  EXPECT_FALSE(power.status());
  gpu.set_faults({.stuck = true});
  const Reading before = *power.read();
  gpu.advance(1);
  EXPECT_EQ(power.read()->time_s, before.time_s);
  gpu.set_faults({});
  gpu.advance(0.1);
  EXPECT_GT(power.read()->time_s, before.time_s);
  gpu.reset_counter();
  gpu.advance(0.1);
  EXPECT_LT(gpu.energy_counter()->value, 0.12 * 600);
}

// The project's own energy window measures the simulated card rightly.
TEST(SimulatedGpu, EnergyWindowMeasuresIt) {
  Gpu gpu({}, 1);
  gpu.set_load(attention(64));
  gpu.advance(2);
  const auto set = open_meter(gpu, Gauge::energy);
  sensors::EnergyWindow window({set.meters.front().get()}, gpu);
  window.begin();
  const double before = gpu.energy_j(), begin = gpu.now_s();
  gpu.advance(5);
  const auto energy = window.end();
  ASSERT_TRUE(energy.energy_j) << energy.reason;
  EXPECT_NEAR(energy.power_w, (gpu.energy_j() - before) / (gpu.now_s() - begin),
              0.002 * energy.power_w);
}

}  // namespace
}  // namespace dfa::simulated
