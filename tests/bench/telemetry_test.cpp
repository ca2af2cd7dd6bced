#include "measure/telemetry.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "bench/case.h"
#include "bench/energy.h"
#include "sensors/fakes.h"
#include "sensors/nvml_world.h"

namespace dfa::bench {
namespace {

using dfa::testing::NvmlWorld;

const GpuIdentity kGpu{.pci_id = "0000:5e:00.0", .name = "NVIDIA H200", .sm_count = 132};

// Two cards in real time; ours is the second.
const std::string kCards =
    "clock real\ndriver 580.1\n"
    "card A100 GPU-aa 00000000:3B:00.0\npower constant 50\nlimit 400\n"
    "card H200 GPU-bb 00000000:5E:00.0\npower constant 300\ntick 0.02\ntemperature 61 70\n"
    "clocks 1.755e9 3.2e9\nutilization 97 50\nthrottled 0.25\nprocess own\nprocess 17\n";

TEST(Telemetry, IsThatOfTheBackendsGpuByItsPciId) {
  const NvmlWorld world(kCards);
  const measure::Telemetry gpu = measure::open_telemetry(kGpu, world);
  EXPECT_TRUE(gpu.on_gpu);
  EXPECT_DOUBLE_EQ(measure::value_of(gpu.power).value(), 300);
  EXPECT_DOUBLE_EQ(measure::value_of(gpu.temperature).value(), 61);
  EXPECT_DOUBLE_EQ(measure::value_of(gpu.clock).value(), 1.755e9);
  EXPECT_EQ(measure::foreign_processes(kGpu), 1);
  const measure::GpuFacts facts = measure::describe_gpu(kGpu).value();
  EXPECT_EQ(facts.name, "NVIDIA H200");
  EXPECT_EQ(facts.driver, "580.1");
  EXPECT_EQ(facts.sm_count, 132);
  EXPECT_DOUBLE_EQ(facts.power_limit_w.value(), 700);
}

TEST(Telemetry, WithoutNvmlEveryGpuSensorHasTheReason) {
  ::setenv("DFA_NVML", "no-nvml-here.so", 1);
  const dfa::testing::FakeClock clock;
  const measure::Telemetry gpu = measure::open_telemetry(kGpu, clock);
  const auto facts = measure::describe_gpu(kGpu);
  EXPECT_FALSE(measure::foreign_processes(kGpu));
  ::unsetenv("DFA_NVML");
  for (const auto* set : {&gpu.energy, &gpu.power, &gpu.temperature, &gpu.clock, &gpu.utilization,
                          &gpu.power_capped, &gpu.too_hot}) {
    EXPECT_TRUE(set->empty());
    EXPECT_NE(set->status.reason.find("no-nvml-here.so"), std::string::npos);
  }
  EXPECT_EQ(facts->name, "NVIDIA H200");
  EXPECT_FALSE(facts->power_limit_w);
}

TEST(Telemetry, TheHostHasNoGpuSensorsAndSaysSo) {
  const dfa::testing::FakeClock clock;
  const measure::Telemetry host = measure::open_telemetry({}, clock);
  EXPECT_FALSE(host.on_gpu);
  EXPECT_NE(host.utilization.status.reason.find("no GPU"), std::string::npos);
  EXPECT_FALSE(measure::describe_gpu({}));
  EXPECT_FALSE(measure::foreign_processes({}));
}

TEST(MeasureEnergy, OnAGpuIsBetweenTicksWhileTheWorkGoesOn) {
  NvmlWorld world(kCards);
  const measure::Telemetry gpu = measure::open_telemetry(kGpu, world);
  EXPECT_DOUBLE_EQ(energy_window_s(gpu.energy), 5);
  // Also of runs before the window. What is read between them and it takes time, and is no run's.
  std::vector<double> begins, ends;
  const SustainedEnergy energy = measure_energy(
      [&] {
        begins.push_back(world.now_s());
        world.sleep_s(0.004);
        ends.push_back(world.now_s());
      },
      0.3, gpu, world);
  ASSERT_TRUE(energy.energy_j) << energy.reason;
  EXPECT_GT(energy.runs, 10);
  ASSERT_GT(ends.size(), static_cast<std::size_t>(energy.runs));
  const double a_run = (ends.back() - begins[begins.size() - energy.runs]) / energy.runs;
  EXPECT_NEAR(energy.power_avg_w, 300, 300 * energy.uncertainty_j / *energy.energy_j);
  EXPECT_NEAR(*energy.energy_j, energy.power_avg_w * a_run, 0.1 * *energy.energy_j);
  EXPECT_NEAR(std::remainder(energy.power_avg_w * energy.seconds, 6), 0, 1e-3);  // whole ticks
  EXPECT_DOUBLE_EQ(energy.power_max_w.value(), 300);
  EXPECT_DOUBLE_EQ(energy.power_sampled_w.value(), 300);
  EXPECT_DOUBLE_EQ(energy.utilization_pct.value(), 97);
  EXPECT_DOUBLE_EQ(energy.clock_hz.value(), 1.755e9);
  EXPECT_DOUBLE_EQ(energy.temp_c.value(), 61);
  EXPECT_NEAR(energy.throttle.power_pct.value(), 25, 4);
  EXPECT_DOUBLE_EQ(energy.throttle.thermal_pct.value(), 0);
}

// Takes a millisecond a run, and a third of one to be asked.
class Asked : public Implementation {
 public:
  Asked(Clock& clock, std::vector<int>& times) : clock_(clock), times_(times) {}
  void run(int times) override {
    times_.push_back(times);
    clock_.sleep_s(0.33e-3 + 1e-3 * times);
  }
  double time_s() override { return 1e-3; }
  measure::MemoryGrowth growth() override { return {}; }
  CheckReport check(const CheckOptions&) override { return {}; }

 private:
  Clock& clock_;
  std::vector<int>& times_;
};

TEST(MeasureEnergy, OnAGpuAskingForWorkTakesLessThanAHundredthOfIt) {
  NvmlWorld world(kCards);
  const measure::Telemetry gpu = measure::open_telemetry(kGpu, world);
  std::vector<int> times;
  Case one;
  one.implementation = std::make_unique<Asked>(world, times);
  one.samples = {Sample{.duration_s = 1e-3}};
  one.measure_energy(gpu, world, 0.3);
  ASSERT_TRUE(one.record.energy_j);
  ASSERT_FALSE(times.empty());
  for (const int n : times) EXPECT_GE(n, 34);  // 0.33 of 34.33 ms
}

TEST(MeasureEnergy, OnAGpuWhoseCounterStandsStillIsAReason) {
  NvmlWorld world(kCards + "stuck 0\n");
  const SustainedEnergy energy = measure_energy([&] { world.sleep_s(0.004); }, 0.01,
                                                measure::open_telemetry(kGpu, world), world);
  EXPECT_FALSE(energy.energy_j);
  EXPECT_NE(energy.reason.find("stands still"), std::string::npos) << energy.reason;
  EXPECT_TRUE(energy.utilization_pct);
}

}  // namespace
}  // namespace dfa::bench
