#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dfa/dtype.h"

namespace dfa {

// One measured way to do a problem, alone on the card, on all of its multiprocessors, without gaps.
struct OperatingPoint {
  std::string label;  // the configuration, as text
  DType dtype = DType::bf16;
  double time_s = 0;  // of one call
  std::optional<double> power_w{};
  std::optional<double> energy_j{};  // of one call
  // That the multiprocessors were locked to meanwhile, a lever of the card's owner; empty: the
  // card's own clock.
  std::optional<double> clock_hz{};
  // Watts on top of idle at the highest clock that it may have: more than power_w shows where the
  // card's own limit held the clock down. Measured with gaps.
  std::optional<double> dynamic_w{};
  double clock_share = 1;             // of that clock, while time_s was measured
  double error = 0;                   // largest, against fp64 on the inputs measured
  bool stores_probabilities = false;  // else the backward computes them anew
  std::int64_t memory_bytes = 0;      // workspace, and P where it is stored
  int load = 0;                       // which problem, where several run in turn
  bool takes_sm_budget = true;        // else its launches always use all multiprocessors
};

}  // namespace dfa
