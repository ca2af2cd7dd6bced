#pragma once

#include <optional>
#include <string>

#include "contract/operating_point.h"

namespace dfa::power {

enum class Goal : int {
  max_performance,
  min_energy,
  edp,
  power_cap,
  temp_cap,
  latency,
  limit,
  clock
};

// What the user wants. value: watts of a power cap or of the card's own limit, degrees Celsius of a
// temperature cap, seconds of a latency, MHz of the clock; 0 for the others. What a policy means
// stands in one row of policy.cpp: nobody else asks which goal it is.
struct Policy {
  Goal goal = Goal::max_performance;
  double value = 0;

  static Policy power_cap(double watts) { return {Goal::power_cap, watts}; }

  const char* name() const;

  std::optional<double> power_cap_w() const { return value_of(Goal::power_cap); }
  std::optional<double> temp_cap_c() const { return value_of(Goal::temp_cap); }
  std::optional<double> latency_s() const { return value_of(Goal::latency); }
  std::optional<double> limit_w() const { return value_of(Goal::limit); }
  std::optional<double> clock_hz() const {
    return goal == Goal::clock ? std::optional(1e6 * value) : std::nullopt;
  }
  // It turns a lever of the card's owner.
  bool turns_card() const { return limit_w() || clock_hz(); }
  // It holds over time, by watts, and not for one call.
  bool is_cap() const { return power_cap_w() || temp_cap_c(); }

  // Points without measured joules are none for it.
  bool needs_joules() const;
  // What the best of the points that it allows has least of.
  double cost_of(const OperatingPoint& point) const;

  bool operator==(const Policy&) const = default;

 private:
  std::optional<double> value_of(Goal one) const {
    return goal == one ? std::optional(value) : std::nullopt;
  }
};

// max_performance, min_energy, edp, power_cap:500W, temp_cap:70C, latency:2ms (s, ms or us),
// limit:450W, clock:1200MHz. Throws InvalidArgument that names the text and what is accepted.
Policy parse_policy(const std::string& text);
std::string to_text(const Policy& policy);  // parse_policy(to_text(p)) == p

}  // namespace dfa::power
