#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "power/governor.h"
#include "power/guard.h"
#include "sensors/simulated/gpu.h"
#include "sensors/simulated/meters.h"
#include "simulate/scenario.h"

namespace dfa::simulate {

// A simulated card with its load, as a governor sees it: an actuator and meters.
class Plant final : public Actuator {
 public:
  Plant(const Scenario& scenario, const simulated::CardParameters& card, std::uint64_t seed)
      : scenario_(scenario), gpu_(card, seed) {
    for (const auto gauge :
         {simulated::Gauge::power, simulated::Gauge::power_average, simulated::Gauge::energy,
          simulated::Gauge::temperature, simulated::Gauge::power_capped}) {
      meters_.push_back(simulated::open_meter(gpu_, gauge));
    }
  }

  Levers levers() const override {
    Levers levers = scenario_.levers;
    if (lent) return levers;
    levers.limit_least_w = levers.limit_most_w = 0;
    levers.clock_least_hz = levers.clock_most_hz = 0;
    return levers;
  }
  void apply(const Action& action) override {
    action_ = action;
    gpu_.set_limit(action.limit_w > 0 ? action.limit_w : scenario_.card.limit_w);
    gpu_.lock_clock(action.clock_hz);
    update();
  }

  power::Telemetry telemetry() const {
    const auto meter = [&](std::size_t i) { return meters_[i].meters.front().get(); };
    const bool power = scenario_.power_sensor;
    return {power ? meter(0) : nullptr, power ? meter(1) : nullptr, {meter(2)}, meter(3), meter(4)};
  }
  simulated::Gpu& gpu() { return gpu_; }

  double load_factor = 1;
  double error_factor = 1;
  double foreign_w = 0;
  bool lent = true;
  power::Activity activity{};

  // What the profile's points are, which has every one at the card's own clock first and then at
  // each of the scenario's.
  const TruePoint& truth() const {
    return scenario_.points[action_.point % scenario_.points.size()];
  }

  // The owner's levers end, and the card is put back, or are there again.
  void lend(bool now) {
    lent = now;
    if (lent) return;
    action_.limit_w = action_.clock_hz = 0;
    apply(action_);
  }

  // Of what runs now, on the inputs of now.
  double error() const { return truth().error * error_factor; }

  // Where the caller declared a bound: what recomputed rows show, now and then.
  void watch(double time_s) {
    if (!scenario_.max_error || !activity.busy || !guard_.due(time_s)) return;
    activity.error = power::SeenError{action_.point, error()};
    guard_.add(time_s, 0, error());
  }

  void update() {
    const TruePoint& point = truth();
    const bool busy = activity.busy;
    const int sms = action_.sms == 0 ? gpu_.card().sm_count : action_.sms;
    gpu_.set_load({.dynamic_w = busy ? point.dynamic_w * load_factor : 0,
                   .work_per_s = busy ? point.work_per_s : 0,
                   .sms = static_cast<double>(sms),
                   .duty = action_.duty,
                   .foreign_w = foreign_w});
  }

 private:
  const Scenario& scenario_;
  simulated::Gpu gpu_;
  std::vector<sensors::MeterSet> meters_;
  Action action_;
  power::Guard guard_;
};

// What a profile measured on this card would say, with the scenario's error.
power::Setup setup_of(const Scenario& scenario, const simulated::CardParameters& card);

}  // namespace dfa::simulate
