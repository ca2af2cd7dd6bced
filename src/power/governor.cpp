#include "power/governor.h"

#include <utility>

namespace dfa::power {
namespace {

constexpr double kStandstillPeriods = 10;

}  // namespace

std::optional<Reading> Observer::power() {
  if (telemetry_.power != nullptr) {
    if (const auto reading = telemetry_.power->read()) return dated(*reading);
  }
  return telemetry_.energy != nullptr ? from_counter() : std::nullopt;
}

std::optional<Reading> Observer::dated(const Reading& reading) {
  const double period = telemetry_.power->period_s();
  if (reading.value != last_.value) {
    changed_s_ = reading.time_s;
    last_ = reading;
  } else if (reading.time_s - changed_s_ > kStandstillPeriods * period) {
    return std::nullopt;
  } else if (reading.time_s - last_.time_s >= 2 * period) {
    last_ = reading;
  }
  return last_;
}

std::optional<Reading> Observer::from_counter() {
  const auto energy = telemetry_.energy->read();
  if (!energy) {
    last_energy_.reset();
    return std::nullopt;
  }
  if (last_energy_ && energy->value < last_energy_->value) last_energy_.reset();
  if (last_energy_ && energy->value == last_energy_->value) return derived_;
  derived_.reset();
  if (last_energy_ && energy->time_s > last_energy_->time_s) {
    derived_ = Reading{energy->time_s, (energy->value - last_energy_->value) /
                                           (energy->time_s - last_energy_->time_s)};
  }
  last_energy_ = energy;
  return derived_;
}

bool Observer::capped() {
  if (telemetry_.capped == nullptr) return false;
  const auto reading = telemetry_.capped->read();
  if (reading && last_capped_ && reading->time_s > last_capped_->time_s) {
    was_capped_ = reading->value > last_capped_->value;
  }
  if (reading && (!last_capped_ || reading->time_s > last_capped_->time_s)) last_capped_ = reading;
  return was_capped_;
}

Observation Observer::observe(double time_s, const Activity& activity) {
  Observation seen{.time_s = time_s,
                   .power = power(),
                   .call_s = activity.call_s,
                   .load = activity.load,
                   .error = activity.error,
                   .capped = capped(),
                   .foreign = activity.foreign,
                   .busy = activity.busy};
  if (telemetry_.mean != nullptr) {
    if (const auto reading = telemetry_.mean->read()) seen.mean_w = reading->value;
  }
  if (telemetry_.temperature != nullptr) {
    if (const auto reading = telemetry_.temperature->read()) seen.temp_c = reading->value;
  }
  return seen;
}

Governor::Governor(Setup setup, const Policy& policy, const Telemetry& telemetry,
                   Actuator& actuator)
    : setup_(std::move(setup)), observer_(telemetry), actuator_(actuator) {
  setup_.levers = actuator.levers();
  set_policy(policy);
}

void Governor::set_policy(const Policy& policy) {
  if (const Verdict verdict = check(setup_, policy); !verdict) throw Unsupported(verdict.reason);
  policy_ = policy;
  policy_changed_ = true;
}

std::optional<Decision> Governor::tick(double time_s, const Activity& activity) {
  const Observation seen = observer_.observe(time_s, activity);
  const bool news = seen.power && seen.power->time_s > state_.power_read_s;
  const bool changed = policy_changed_ || activity.load != state_.load;
  if (state_.started && !changed && !news && time_s - stepped_s_ < kPeriod - 1e-9) {
    return std::nullopt;
  }
  policy_changed_ = false;
  stepped_s_ = time_s;
  const Step made = step(state_, seen, policy_, setup_);
  const bool moved = !state_.started || !(made.action() == state_.action);
  state_ = made.state;
  if (moved) actuator_.apply(state_.action);
  return made.decision;
}

}  // namespace dfa::power
