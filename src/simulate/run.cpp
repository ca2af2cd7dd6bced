#include "simulate/run.h"

#include <algorithm>

#include "base/clock.h"
#include "simulate/plant.h"

namespace dfa::simulate {
namespace {

constexpr double kTick = 0.01;  // how often the governor looks
constexpr int kSampleTicks = 10;
constexpr double kProfileSeconds = 3;  // of warm steady running behind each row of the profile

bool happens(Plant& plant, power::Governor& governor, const Event& event) {
  if (event.policy) governor.set_policy(*event.policy);
  if (event.load_factor) plant.load_factor = *event.load_factor;
  if (event.error_factor) plant.error_factor = *event.error_factor;
  if (event.busy) plant.activity.busy = *event.busy;
  if (event.foreign_w) plant.foreign_w = *event.foreign_w;
  if (event.foreign_seen) plant.activity.foreign = *event.foreign_seen;
  if (event.inlet_c) plant.gpu().set_inlet(*event.inlet_c);
  if (event.counter_reset) plant.gpu().reset_counter();
  if (event.lent) plant.lend(*event.lent);
  if (event.outage || event.stuck) {
    plant.gpu().set_faults(
        {.outage = event.outage.value_or(false), .stuck = event.stuck.value_or(false)});
  }
  plant.update();
  return true;
}

// Means of the last 100 ms and of the last second.
class SampleTaker {
 public:
  power::TraceSample take(Plant& plant, const power::Policy& policy) {
    const simulated::Gpu& gpu = plant.gpu();
    const double power = (gpu.energy_j() - energy_j_) / (kSampleTicks * kTick);
    second_.push_back(power);
    if (second_.size() > 10) second_.erase(second_.begin());
    double sum = 0;
    for (const double w : second_) sum += w;
    const power::TraceSample sample{.time_s = gpu.now_s(),
                                    .power_w = power,
                                    .second_w = sum / static_cast<double>(second_.size()),
                                    .temp_c = gpu.temp_c(),
                                    .clock_hz = gpu.clock_hz(),
                                    .work_per_s = (gpu.work() - work_) / (kSampleTicks * kTick),
                                    .cap_w = policy.power_cap_w().value_or(0),
                                    .cap_c = policy.temp_cap_c().value_or(0)};
    energy_j_ = gpu.energy_j();
    work_ = gpu.work();
    return sample;
  }

 private:
  std::vector<double> second_;
  double energy_j_ = 0, work_ = 0;
};

// What a few seconds of a warm card at this clock would show, with the scenario's error; 0: its
// own.
OperatingPoint measured(const Scenario& scenario, const simulated::CardParameters& card,
                        const TruePoint& point, double clock_hz) {
  const double gain = 1 + scenario.profile_error;
  simulated::Gpu gpu(card, scenario.seed);
  gpu.lock_clock(clock_hz);
  gpu.set_load({.dynamic_w = point.dynamic_w,
                .work_per_s = point.work_per_s,
                .sms = static_cast<double>(card.sm_count)});
  gpu.settle();
  gpu.advance(1);
  const double work = gpu.work(), energy = gpu.energy_j();
  gpu.advance(kProfileSeconds);
  const double rate = (gpu.work() - work) / kProfileSeconds;
  const double power = (gpu.energy_j() - energy) / kProfileSeconds;
  const double most_hz = clock_hz > 0 ? clock_hz : card.clock_max_hz;
  OperatingPoint shown{
      .label = point.label,
      .dtype = point.dtype,
      .time_s = 1 / rate,
      .power_w = card.idle_w + (power - card.idle_w) * gain,
      .energy_j = power * gain / rate,
      .dynamic_w = point.dynamic_w * gain * simulated::clock_power_factor(card, most_hz),
      .clock_share = rate / (point.work_per_s * most_hz / card.clock_max_hz),
      .error = point.error};
  if (clock_hz > 0) shown.clock_hz = clock_hz;
  return shown;
}

}  // namespace

power::Setup setup_of(const Scenario& scenario, const simulated::CardParameters& card) {
  power::Setup setup;
  setup.levers = scenario.levers;
  setup.idle_w = card.idle_w;
  setup.limit_w = card.limit_w;
  setup.max_error = scenario.max_error.value_or(setup.max_error);
  std::vector<double> clocks{0};
  clocks.insert(clocks.end(), scenario.clocks_hz.begin(), scenario.clocks_hz.end());
  for (const double hz : clocks) {
    for (const TruePoint& point : scenario.points) {
      setup.points.push_back(measured(scenario, card, point, hz));
    }
  }
  return setup;
}

power::Trace run(const Scenario& scenario, const Interrupted& interrupted) {
  const double begin = monotonic_s();
  power::Trace result;
  Plant plant(scenario, scenario.card, scenario.seed);
  power::Governor governor(setup_of(scenario, scenario.card), scenario.policy, plant.telemetry(),
                           plant);
  result.setup = governor.setup();
  SampleTaker taker;
  auto next = scenario.events.begin();
  double inexact_s = 0;
  const auto ticks = std::llround(scenario.seconds / kTick);
  for (long long tick = 0; tick < ticks; ++tick) {
    const double now = plant.gpu().now_s();
    while (next != scenario.events.end() && next->at_s <= now + 1e-9) {
      happens(plant, governor, *next++);
    }
    plant.watch(now);
    if (const auto decision = governor.tick(now, plant.activity)) {
      result.decisions.push_back(*decision);
    }
    plant.gpu().advance(kTick);
    if (scenario.max_error) {
      const bool inexact = plant.activity.busy && plant.error() > *scenario.max_error;
      inexact_s = inexact ? inexact_s + kTick : 0;
      result.inexact_s = std::max(result.inexact_s.value_or(0), inexact_s);
    }
    if ((tick + 1) % kSampleTicks != 0) continue;
    result.samples.push_back(taker.take(plant, governor.policy()));
    if (interrupted && interrupted()) break;
  }
  result.work = plant.gpu().work();
  result.energy_j = plant.gpu().energy_j();
  result.host_s = monotonic_s() - begin;
  return result;
}

power::TraceHead head_of(const Scenario& scenario) {
  power::TraceHead head{.name = scenario.name,
                        .about = scenario.about,
                        .card = scenario.card.name,
                        .policy = scenario.policy,
                        .seconds = scenario.seconds};
  for (const Event& event : scenario.events) {
    head.events.push_back({.at_s = event.at_s, .note = event.note, .policy = event.policy});
  }
  return head;
}

Scenario until(Scenario scenario, double seconds) {
  scenario.seconds = seconds;
  scenario.bounds = {};
  std::erase_if(scenario.events, [&](const Event& event) { return event.at_s >= seconds; });
  return scenario;
}

Scenario pacing_only(Scenario scenario) {
  const auto paced = [](power::Policy& policy) {
    if (const auto watts = policy.limit_w()) policy = power::Policy::power_cap(*watts);
  };
  paced(scenario.policy);
  for (Event& event : scenario.events) {
    if (event.policy) paced(*event.policy);
  }
  scenario.levers.limit_least_w = scenario.levers.limit_most_w = 0;
  scenario.levers.clock_least_hz = scenario.levers.clock_most_hz = 0;
  scenario.clocks_hz.clear();
  if (scenario.max_error) {
    std::erase_if(scenario.points,
                  [&](const TruePoint& point) { return point.error > *scenario.max_error; });
  }
  const auto fastest = std::max_element(
      scenario.points.begin(), scenario.points.end(),
      [](const TruePoint& a, const TruePoint& b) { return a.work_per_s < b.work_per_s; });
  if (fastest != scenario.points.end()) scenario.points = {*fastest};
  scenario.levers.sm_count = 0;
  scenario.levers.pacing = true;
  return scenario;
}

}  // namespace dfa::simulate
