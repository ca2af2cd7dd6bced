#include "bench/energy.h"

#include <algorithm>

#include "sensors/energy_window.h"
#include "sensors/sampler.h"

namespace dfa::bench {
namespace {

constexpr double kPowerPeriod = 0.05;  // long against a counter's tick, short against heat
constexpr std::size_t kRing = 1 << 16;

std::vector<Meter*> pointers(const sensors::MeterSet& set) {
  std::vector<Meter*> meters;
  for (const auto& meter : set.meters) meters.push_back(meter.get());
  return meters;
}

std::optional<double> largest_sampled(sensors::Sampler& sampler, std::size_t meters) {
  std::vector<std::vector<Reading>> readings(meters);
  for (const auto& sample : sampler.drain()) readings[sample.meter].push_back(sample.reading);
  return bench::largest_power(readings);
}

}  // namespace

double energy_window_s(const sensors::MeterSet& counters) {
  double period = 0;
  for (const auto& meter : counters.meters) period = std::max(period, meter->period_s());
  return std::clamp(200 * period, 0.5, 20.0);
}

std::optional<double> largest_power(const std::vector<std::vector<Reading>>& readings) {
  if (readings.empty()) return std::nullopt;
  std::size_t steps = readings[0].size();
  for (const auto& one : readings) steps = std::min(steps, one.size());
  std::optional<double> largest;
  for (std::size_t k = 1; k < steps; ++k) {
    double power = 0;
    for (const auto& one : readings) {
      const double seconds = one[k].time_s - one[k - 1].time_s;
      if (seconds > 0) power += (one[k].value - one[k - 1].value) / seconds;
    }
    largest = std::max(largest.value_or(power), power);
  }
  return largest;
}

SustainedEnergy measure_energy(const std::function<void()>& run, double seconds,
                               const sensors::MeterSet& counters, const Clock& clock) {
  SustainedEnergy result;
  if (counters.empty()) {
    result.reason = counters.status.reason;
    return result;
  }
  const std::vector<Meter*> meters = pointers(counters);
  sensors::EnergyWindow window(meters);
  sensors::Sampler sampler(meters, kPowerPeriod, kRing);
  window.begin();
  sampler.start();
  const double begin = clock.now_s();
  do {
    run();
    ++result.runs;
  } while (clock.now_s() - begin < seconds);
  sampler.stop();
  const sensors::Energy energy = window.end();
  result.seconds = energy.seconds;
  result.reason = energy.reason;
  if (!energy.energy_j) return result;
  result.energy_j = *energy.energy_j / result.runs;
  result.uncertainty_j = energy.uncertainty_j / result.runs;
  result.power_avg_w = *energy.energy_j / energy.seconds;
  result.power_max_w = largest_sampled(sampler, meters.size());
  return result;
}

}  // namespace dfa::bench
