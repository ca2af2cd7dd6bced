#pragma once

#include <functional>
#include <optional>
#include <string>

#include "contract/clock.h"
#include "sensors/meter_set.h"

namespace dfa::bench {

// Energy and power of work repeated back to back for a while. The counters cover everything the
// metered parts do in that time, other processes included.
struct SustainedEnergy {
  std::optional<double> energy_j;  // of one run
  double uncertainty_j = 0;        // of one run
  double power_avg_w = 0;
  std::optional<double> power_max_w;  // over one sampling period
  double seconds = 0;
  int runs = 0;
  std::string reason;  // where energy_j is empty
};

// How long the window must be for these counters: their period may be wrong at both ends, and that
// must stay below 1 %; never under half a second, never above 20 s.
double energy_window_s(const sensors::MeterSet& counters);

// Runs at least once and for `seconds`. Lets pass what `run` throws.
SustainedEnergy measure_energy(const std::function<void()>& run, double seconds,
                               const sensors::MeterSet& counters, const Clock& clock);

// Largest power over all sampling steps: readings of `meters` counters, each in order of time, in
// joules; the k-th readings of all meters belong together.
std::optional<double> largest_power(const std::vector<std::vector<Reading>>& readings);

}  // namespace dfa::bench
