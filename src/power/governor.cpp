#include "power/governor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace dfa::power {
namespace {

constexpr double kStandstillPeriods = 10;
constexpr double kStandstill = 0.5;  // s beyond them, of counters

double longest_standstill(const std::vector<Meter*>& counters) {
  double period = 0;
  for (const Meter* meter : counters) period = std::max(period, meter->period_s());
  return kStandstillPeriods * period + kStandstill;
}

// What broke off last, as far as a counter tells.
std::string broken(const std::vector<Meter*>& counters) {
  for (const Meter* meter : counters) {
    const std::string why = meter->break_reason();
    if (!why.empty()) return meter->name() + ": " + why;
  }
  return "a counter of energy went back";
}

}  // namespace

std::optional<Reading> Observer::power() {
  unread_.clear();
  if (telemetry_.power != nullptr) {
    if (const auto reading = telemetry_.power->read()) return dated(*reading);
    unread_ = telemetry_.power->name() + ": " + telemetry_.power->status().reason;
  }
  return telemetry_.energy.empty() ? std::nullopt : from_counters();
}

std::optional<Reading> Observer::dated(const Reading& reading) {
  const double period = telemetry_.power->period_s();
  if (reading.value != last_.value) {
    changed_s_ = reading.time_s;
    last_ = reading;
  } else if (reading.time_s - changed_s_ > kStandstillPeriods * period) {
    unread_ = fmt::format("{} shows {:g} W since {:.1f} s", telemetry_.power->name(), reading.value,
                          reading.time_s - changed_s_);
    return std::nullopt;
  } else if (reading.time_s - last_.time_s >= 2 * period) {
    last_ = reading;
  }
  return last_;
}

// All counters together, at the middle of their times.
std::optional<Reading> Observer::counted() {
  Reading sum;
  for (Meter* meter : telemetry_.energy) {
    const auto reading = meter->read();
    if (!reading) {
      unread_ = meter->name() + ": " + meter->status().reason;
      return std::nullopt;
    }
    sum.value += reading->value;
    sum.breaks += reading->breaks;
    sum.time_s += reading->time_s / static_cast<double>(telemetry_.energy.size());
  }
  return sum;
}

std::optional<Reading> Observer::from_counters() {
  const auto now = counted();
  if (now && last_energy_ && now->breaks == last_energy_->breaks &&
      now->value == last_energy_->value) {
    const double still_s = now->time_s - last_energy_->time_s;
    if (still_s <= longest_standstill(telemetry_.energy)) return derived_;
    unread_ = fmt::format("the counters of energy stand still since {:.1f} s", still_s);
    return std::nullopt;
  }
  const auto before = std::exchange(last_energy_, now);
  derived_.reset();
  if (!now || !before) return std::nullopt;
  if (now->breaks != before->breaks || now->value < before->value) {
    unread_ = broken(telemetry_.energy);
  } else if (now->time_s > before->time_s) {
    derived_ = Reading{now->time_s, (now->value - before->value) / (now->time_s - before->time_s)};
  }
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
                   .step_s = activity.step_s,
                   .load = activity.load,
                   .error = activity.error,
                   .capped = capped(),
                   .foreign = activity.foreign,
                   .busy = activity.busy};
  if (!seen.power) seen.unread = unread_;
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
  const Levers levers = actuator_.levers();
  const bool changed =
      policy_changed_ || activity.load != state_.load || !(levers == setup_.levers);
  setup_.levers = levers;
  if (state_.started && !changed && !news && time_s - stepped_s_ < kPeriod - 1e-9) {
    return std::nullopt;
  }
  policy_changed_ = false;
  stepped_s_ = time_s;
  const ControlStep made = step(state_, seen, policy_, setup_);
  const bool moved = !state_.started || !(made.action() == state_.action);
  state_ = made.state;
  if (moved) actuator_.apply(state_.action);
  return made.decision;
}

}  // namespace dfa::power
