#pragma once

#include <cstddef>
#include <optional>

#include "power/controller.h"

namespace dfa::power {

// Is this clock lent?
bool lends(const Levers& levers, double clock_hz);

// What the card's own limit is set to for a cap of power; 0 where its owner does not lend it. The
// firmware holds means of a second about its limit, some above it.
double limit_for(const Setup& setup, const Policy& policy);

// Can this policy have this point: is there the memory, is its clock lent, and are watts or joules
// known where it needs them? Who names a lever of the card has no other turned. A cap that the
// card's own limit holds needs none: it holds it by all clocks that the card has.
bool usable(const Setup& setup, const Policy& policy, const OperatingPoint& point);

// … and is its error within the bound, by the profile and what was seen since? Where nothing is,
// the most exact points are.
bool admissible(const Setup& setup, const State& state, const Policy& policy, std::size_t point);

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
