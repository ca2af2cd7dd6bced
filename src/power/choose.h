#pragma once

#include <cstddef>
#include <optional>

#include "power/controller.h"

namespace dfa::power {

// May this point run at all: error, memory, and, where the policy needs them, joules or watts?
bool admissible(const Setup& setup, const Policy& policy, const OperatingPoint& point);

// Watts of a point on top of idle, by the profile alone.
double dynamic_power(const Setup& setup, const OperatingPoint& point);

// Those that this point obeys.
Levers levers_of(const Setup& setup, std::size_t point);

// Level at which a point draws target_w by profile and bias; not limited to what levers reach.
double level_for(const Setup& setup, const State& state, std::size_t point, double target_w);

struct Choice {
  std::size_t point = 0;
  double gain = 1;  // what it gains over the point that runs now; infinite where that may not
  bool reachable = true;
  std::optional<double> nearest{};  // the nearest value of the goal, where it is not reachable
};

// The best point for a goal without a target of power.
Choice choose_point(const Setup& setup, const State& state, const Policy& policy);

// The point with most work under a target of power.
Choice choose_point_below(const Setup& setup, const State& state, const Policy& policy,
                          double target_w);

}  // namespace dfa::power
