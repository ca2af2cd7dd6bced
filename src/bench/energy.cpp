#include "bench/energy.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <thread>

#include "measure/statistics.h"
#include "sensors/energy_window.h"
#include "sensors/sampler.h"

namespace dfa::bench {
namespace {

constexpr double kPowerPeriod = 0.05;  // long against a fast counter's tick, short against heat
constexpr double kSlowTick = 0.05;     // from here on a window begins and ends at ticks
constexpr double kAlignedWindow = 5;   // a GPU's counter takes milliseconds to read
// Ahead of a GPU's window: one that has rested is cooler, and boosts for a tenth of a second before
// its power limit takes hold, so that what was measured first would be at a disadvantage.
constexpr double kSettle = 0.3;
constexpr std::size_t kRing = 1 << 16;
const sensors::MeterSet kNone{};  // a processor's are files, slow to read beside its counters

double longest_period(const sensors::MeterSet& counters) {
  double period = 0;
  for (const auto& meter : counters.meters) period = std::max(period, meter->period_s());
  return period;
}

using Samples = std::vector<sensors::Sampler::Entry>;

std::vector<std::vector<Reading>> by_meter(const Samples& samples, std::size_t meters) {
  std::vector<std::vector<Reading>> readings(meters);
  for (const auto& sample : samples) readings[sample.meter].push_back(sample.reading);
  return readings;
}

// Readings of the first `meters` of them, of rounds that have one of each.
std::vector<std::vector<Reading>> in_step(const Samples& samples, std::size_t meters) {
  std::map<std::uint64_t, std::vector<Reading>> rounds;
  for (const auto& sample : samples) {
    std::vector<Reading>& round = rounds[sample.round];
    if (sample.meter == round.size() && sample.meter < meters) round.push_back(sample.reading);
  }
  std::vector<std::vector<Reading>> readings(meters);
  for (const auto& [number, round] : rounds) {
    if (round.size() != meters) continue;
    for (std::size_t i = 0; i < meters; ++i) readings[i].push_back(round[i]);
  }
  return readings;
}

// Power of all counters from one round to the next; none where one of them tells nothing.
std::optional<double> power_of_step(const std::vector<std::vector<Reading>>& readings,
                                    std::size_t k) {
  double power = 0;
  for (const auto& one : readings) {
    const Reading &before = one[k - 1], &now = one[k];
    const double seconds = now.time_s - before.time_s;
    if (now.breaks != before.breaks || !(seconds > 0)) return std::nullopt;
    power += (now.value - before.value) / seconds;
  }
  return power;
}

void summarize_power(const std::vector<Reading>& readings, SustainedEnergy& result) {
  double sum = 0;
  for (const Reading& reading : readings) {
    sum += reading.value;
    result.power_max_w = std::max(result.power_max_w.value_or(reading.value), reading.value);
  }
  if (!readings.empty()) result.power_sampled_w = sum / static_cast<double>(readings.size());
}

// Meters that are read while the work goes on, the one of each set that has any.
struct Watched {
  std::vector<Meter*> meters;

  // Its place among the meters; none where the set is empty.
  std::optional<std::size_t> add(const sensors::MeterSet& set) {
    if (set.empty()) return std::nullopt;
    meters.push_back(set.meters[0].get());
    return meters.size() - 1;
  }
};

std::optional<double> median_of(const std::vector<std::vector<Reading>>& readings,
                                std::optional<std::size_t> meter) {
  if (!meter || readings[*meter].empty()) return std::nullopt;
  std::vector<double> values;
  for (const Reading& reading : readings[*meter]) values.push_back(reading.value);
  return measure::summarize(values).median;
}

std::optional<Reading> read_first(const sensors::MeterSet& set) {
  return set.empty() ? std::nullopt : set.meters[0]->read();
}

// The share since `before`, read now.
std::optional<double> share_pct(const std::optional<Reading>& before, const sensors::MeterSet& set,
                                std::string& reason) {
  const auto after = read_first(set);
  if (!before || !after) return std::nullopt;
  const Share share = share_of_time(*before, *after, set.first()->period_s());
  if (!share.reason.empty()) reason = set.first()->name() + ": " + share.reason;
  return share.pct;
}

// The work, repeated while somebody else measures.
class Repeated {
 public:
  Repeated(const std::function<void()>& run, const Clock& clock) : run_(run), clock_(clock) {}

  template <typename Enough>
  void until(const Enough& enough) {
    const double begin = clock_.now_s();
    runs_ = 0;
    do {
      run_();
      ++runs_;
    } while (!enough());
    seconds_ = clock_.now_s() - begin;
  }

  int runs() const { return runs_; }
  double seconds_a_run() const { return seconds_ / runs_; }

 private:
  const std::function<void()>& run_;
  const Clock& clock_;
  int runs_ = 0;
  double seconds_ = 0;
};

// The sampler may be reading the same counters, so that it runs inside the marks.
sensors::Energy between_marks(Repeated& work, double seconds, const std::vector<Meter*>& counters,
                              sensors::Sampler& sampler, const Clock& clock) {
  sensors::EnergyWindow window(counters);
  window.begin();
  sampler.start();
  const double begin = clock.now_s();
  work.until([&] { return clock.now_s() - begin >= seconds; });
  sampler.stop();
  return window.end();
}

// The sampler has other meters than `counters`.
sensors::Energy between_ticks(Repeated& work, double seconds, const std::vector<Meter*>& counters,
                              sensors::Sampler& sampler, Clock& clock) {
  sensors::Energy energy;
  std::atomic<bool> done = false;
  sampler.start();
  const std::jthread watcher([&] {
    sensors::EnergyWindow window(counters, clock);
    window.begin();
    clock.sleep_s(seconds);
    energy = window.end();
    done = true;
  });
  work.until([&] { return done.load(); });
  sampler.stop();
  return energy;
}

}  // namespace

double energy_window_s(const sensors::MeterSet& counters) {
  const double period = longest_period(counters);
  return period > kSlowTick ? kAlignedWindow : std::clamp(200 * period, 0.5, 20.0);
}

std::optional<double> largest_power(const std::vector<std::vector<Reading>>& readings) {
  if (readings.empty()) return std::nullopt;
  std::size_t steps = readings[0].size();
  for (const auto& one : readings) steps = std::min(steps, one.size());
  std::optional<double> largest;
  for (std::size_t k = 1; k < steps; ++k) {
    const auto power = power_of_step(readings, k);
    if (power) largest = std::max(largest.value_or(*power), *power);
  }
  return largest;
}

Share share_of_time(const Reading& before, const Reading& after, double period_s) {
  const double seconds = after.time_s - before.time_s, grown = after.value - before.value;
  if (!(seconds > 0)) return {std::nullopt, "no time passed between its readings"};
  if (grown >= 0 && grown <= seconds + 2 * period_s)
    return {100 * std::min(1.0, grown / seconds), ""};
  return {std::nullopt,
          fmt::format("it went from {:.3f} to {:.3f} s in {:.3f} s, which is no share of the time",
                      before.value, after.value, seconds)};
}

SustainedEnergy measure_energy(const std::function<void()>& run, double seconds,
                               const measure::Telemetry& telemetry, Clock& clock) {
  SustainedEnergy result;
  if (telemetry.energy.empty()) {
    result.reason = telemetry.energy.status.reason;
    return result;
  }
  const std::vector<Meter*> counters = telemetry.energy.all();
  const bool slow = longest_period(telemetry.energy) > kSlowTick;
  // Counters that tick fast give the largest power where no meter does.
  const bool sampled = telemetry.power.empty() && !slow;
  Watched watched{sampled ? counters : std::vector<Meter*>{}};
  const auto power = watched.add(telemetry.power);
  const auto clock_rate = watched.add(telemetry.on_gpu ? telemetry.clock : kNone);
  const auto temperature = watched.add(telemetry.on_gpu ? telemetry.temperature : kNone);
  sensors::Sampler sampler(watched.meters, kPowerPeriod, kRing);
  Repeated work(run, clock);
  if (slow) {
    const double begin = clock.now_s();
    work.until([&] { return clock.now_s() - begin >= kSettle; });
  }
  const auto capped = read_first(telemetry.power_capped);
  const auto hot = read_first(telemetry.too_hot);
  const sensors::Energy energy = slow ? between_ticks(work, seconds, counters, sampler, clock)
                                      : between_marks(work, seconds, counters, sampler, clock);
  result.throttle.power_pct = share_pct(capped, telemetry.power_capped, result.throttle_reason);
  result.throttle.thermal_pct = share_pct(hot, telemetry.too_hot, result.throttle_reason);
  result.utilization_pct = measure::value_of(telemetry.utilization);
  result.reading_share = sampler.cost().share();
  const Samples samples = sampler.drain();
  const auto readings = by_meter(samples, watched.meters.size());
  result.clock_hz = median_of(readings, clock_rate);
  result.temp_c = median_of(readings, temperature);
  result.runs = work.runs();
  result.seconds = energy.seconds;
  result.reason = energy.reason;
  if (!energy.energy_j) return result;
  // A window between ticks holds no whole number of runs: its power times the time of a run.
  const double runs = slow ? energy.seconds / work.seconds_a_run() : work.runs();
  result.energy_j = *energy.energy_j / runs;
  result.uncertainty_j = energy.uncertainty_j / runs;
  result.power_avg_w = energy.power_w;
  if (power) summarize_power(readings[*power], result);
  if (sampled) result.power_max_w = largest_power(in_step(samples, counters.size()));
  return result;
}

}  // namespace dfa::bench
