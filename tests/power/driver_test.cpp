#include "power/driver.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <vector>

#include "power/pacer.h"
#include "sensors/nvml/meters.h"
#include "sensors/system_clock.h"
#include "temp_dir.h"

namespace dfa::power {
namespace {

Setup one_point() {
  Setup setup;
  setup.points = {{.label = "only", .time_s = 1e-3, .power_w = 600}};
  setup.idle_w = 100;
  setup.limit_w = 700;
  return setup;
}

// Draws what the pacer's duty says, with a little noise; can fall silent.
class PacedMeter final : public Meter {
 public:
  PacedMeter(const Pacer& pacer, const Clock& clock) : pacer_(pacer), clock_(clock) {}
  std::string name() const override { return "paced"; }
  Quantity quantity() const override { return Quantity::power_w; }
  double period_s() const override { return 0.02; }
  Verdict status() const override { return Verdict::yes(); }
  std::optional<Reading> read() override {
    if (silent) return std::nullopt;
    const double now = clock_.now_s();
    return Reading{now, 100 + 500 * pacer_.duty() + 0.1 * std::sin(1e3 * now)};
  }
  std::atomic<bool> silent{false};

 private:
  const Pacer& pacer_;
  const Clock& clock_;
};

template <typename Condition>
bool soon(const Condition& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

struct Rig {
  sensors::SystemClock clock;
  Pacer pacer;
  PacedMeter meter{pacer, clock};
  Governor governor{one_point(), {Goal::power_cap, 400}, {.power = &meter}, pacer};
  std::atomic<int> decisions{0};
  std::atomic<PolicyStatus> status{PolicyStatus::holding};
  Driver driver{governor, clock, [this](const Decision& made) {
                  ++decisions;
                  status = made.status;
                }};
};

TEST(Driver, HoldsACapFromItsOwnThread) {
  Rig rig;
  rig.driver.start();
  rig.driver.start();  // does nothing
  EXPECT_TRUE(soon([&] { return std::abs(100 + 500 * rig.pacer.duty() - 395.2) < 4; }));
  rig.driver.set_policy({Goal::power_cap, 300});
  EXPECT_TRUE(soon([&] { return std::abs(100 + 500 * rig.pacer.duty() - 296.4) < 4; }));
  EXPECT_THROW(rig.driver.set_policy({Goal::min_energy, 0}), Unsupported);  // no joules known
  rig.driver.stop();
  const int made = rig.decisions;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(rig.decisions, made);
  rig.driver.start();
  EXPECT_TRUE(soon([&] { return rig.decisions > made; }));
}

TEST(Driver, SensorsThatFallSilentAreToldAndTheKernelsGoOn) {
  Rig rig;
  rig.driver.start();
  EXPECT_TRUE(soon([&] { return rig.decisions > 3; }));
  rig.meter.silent = true;
  EXPECT_TRUE(soon([&] { return rig.status == PolicyStatus::stale; }));
  EXPECT_GT(rig.pacer.duty(), 0.4);
  rig.meter.silent = false;
  EXPECT_TRUE(soon([&] { return rig.status == PolicyStatus::holding; }));
}

TEST(Driver, ManyThreadsMayTalkToIt) {
  Rig rig;
  rig.driver.start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        rig.driver.set_activity({.busy = true, .foreign = i % 7 == 0, .call_s = 1e-3});
        if (i % 50 == 0) rig.driver.set_policy({Goal::power_cap, 300.0 + 10 * t});
        static_cast<void>(rig.pacer.duty());
        static_cast<void>(rig.driver.busy_share());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// NVML through the real path: a library loaded at run time, its fields, its statuses.
TEST(Driver, GovernsByNvml) {
  const testing::TempDir folder;
  const auto file = folder.write("world",
                                 "clock real\ncard H200 GPU-1 00000000:3B:00.0\n"
                                 "power sine 480 30 0.7\n"
                                 "tick 0.02\nlimit 700\ntemperature 61 70\n");
  ::setenv("DFA_FAKE_NVML", file.c_str(), 1);
  ::setenv("DFA_NVML", DFA_FAKE_NVML_LIBRARY, 1);
  {
    const nvml::OpenedLibrary opened = nvml::open_library();
    ASSERT_TRUE(opened.library) << opened.status.reason;
    const auto device = nvml::find_device(opened.library, "0000:3b:00.0");
    ASSERT_TRUE(device.value) << device.status.reason;
    sensors::SystemClock clock;
    const auto power = nvml::open_meter(*device.value, nvml::Gauge::power, clock);
    const auto heat = nvml::open_meter(*device.value, nvml::Gauge::temperature, clock);
    ASSERT_FALSE(power.empty());
    ASSERT_FALSE(heat.empty());
    Pacer pacer;
    Governor governor(one_point(), {Goal::power_cap, 400},
                      {.power = power.meters[0].get(), .temperature = heat.meters[0].get()}, pacer);
    std::vector<Decision> decisions;
    std::atomic<int> count{0};
    Driver driver(governor, clock, [&](const Decision& made) {
      decisions.push_back(made);
      ++count;
    });
    driver.start();
    EXPECT_TRUE(soon([&] { return count > 20; }));
    driver.stop();
    bool read = false;
    for (const Decision& made : decisions) {
      if (!made.power_w) continue;
      read = true;
      EXPECT_NEAR(*made.power_w, 480, 30.1);
      EXPECT_EQ(made.temp_c, 61);
    }
    EXPECT_TRUE(read);
    EXPECT_LT(pacer.duty(), 0.5);  // 480 W do not become less, however long the gaps: down it goes
  }
  ::unsetenv("DFA_NVML");
  ::unsetenv("DFA_FAKE_NVML");
}

// A clock whose sleeps take longer than asked for.
class SlowClock final : public Clock {
 public:
  double now_s() const override { return now; }
  void sleep_s(double seconds) override { now += seconds + 60e-6; }
  double now = 0;
};

TEST(Pacer, KeepsTheDutyWhateverASleepTakes) {
  for (const double run_s : {20e-6, 0.3e-3, 1e-3, 5e-3}) {
    for (const double duty : {0.1, 0.5, 0.9, 0.97}) {
      Pacer pacer;
      pacer.apply({.point = 2, .sms = 0, .duty = duty});
      EXPECT_EQ(pacer.point(), 2u);
      SlowClock clock;
      Gaps gaps(pacer);
      double busy = 0;
      for (int i = 0; i < 5000; ++i) {
        clock.now += run_s;
        busy += run_s;
        gaps.pause(run_s, clock);
      }
      EXPECT_NEAR(busy / clock.now, duty, 0.01) << run_s;
    }
  }
}

// Each of two streams is busy for its share of the time, while the governor's thread turns the
// duty.
TEST(Pacer, ThreadsWithStreamsOfTheirOwnKeepTheDutyEach) {
  Pacer pacer;
  pacer.apply({.duty = 0.9});
  std::array<double, 2> shares{};
  std::vector<std::thread> threads;
  for (double& share : shares) {
    threads.emplace_back([&pacer, &share] {
      SlowClock clock;
      Gaps gaps(pacer);
      while (pacer.duty() > 0.5) std::this_thread::yield();
      double busy = 0;
      for (int i = 0; i < 5000; ++i) {
        clock.now += 1e-3;
        busy += 1e-3;
        gaps.pause(1e-3, clock);
      }
      share = busy / clock.now;
    });
  }
  pacer.apply({.duty = 0.3});
  for (std::thread& thread : threads) thread.join();
  for (const double share : shares) EXPECT_NEAR(share, 0.3, 0.01);
}

TEST(Pacer, FullDutyNeverWaits) {
  Pacer pacer;
  SlowClock clock;
  Gaps gaps(pacer);
  for (int i = 0; i < 100; ++i) gaps.pause(1e-3, clock);
  EXPECT_EQ(clock.now, 0);
}

}  // namespace
}  // namespace dfa::power
