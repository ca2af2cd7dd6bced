#pragma once

#include <string>

namespace dfa::power {

enum class Goal : int { max_performance, min_energy, edp, power_cap, temp_cap, latency };

// What the user wants. value: watts of a power cap, degrees Celsius of a temperature cap, seconds
// of a latency; 0 for the others.
struct Policy {
  Goal goal = Goal::max_performance;
  double value = 0;

  bool operator==(const Policy&) const = default;
};

// max_performance, min_energy, edp, power_cap:500W, temp_cap:70C, latency:2ms (s, ms or us).
// Throws InvalidArgument that names the text and what is accepted.
Policy parse_policy(const std::string& text);
std::string to_text(const Policy& policy);  // parse_policy(to_text(p)) == p

}  // namespace dfa::power
