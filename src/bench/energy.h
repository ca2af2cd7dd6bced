#pragma once

#include <functional>
#include <optional>
#include <string>

#include "bench/result.h"
#include "measure/telemetry.h"

namespace dfa::bench {

// Energy and power of work repeated back to back for a while. The counters cover everything the
// metered parts do in that time, other processes included.
struct SustainedEnergy {
  std::optional<double> energy_j;         // of one run
  double uncertainty_j = 0;               // of one run, a bound
  double power_avg_w = 0;                 // by the counters
  std::optional<double> power_max_w;      // instantaneous, else over one sampling period
  std::optional<double> power_sampled_w;  // mean of the instantaneous readings: a second opinion
  std::optional<double> utilization_pct;
  std::optional<double> clock_hz;  // medians over the window
  std::optional<double> temp_c;
  Throttle throttle;            // share of the time
  std::string throttle_reason;  // where a counter of time showed what is no share of it
  double seconds = 0;
  int runs = 0;
  double reading_share = 0;  // of the time, spent in the sampler's reads
  std::string reason;        // where energy_j is empty
};

// How long the window must be for these counters: what its two ends leave open must stay below 1 %
// where a counter ticks fast, and some parts in a thousand where windows are aligned to its ticks.
// Never under half a second, never above 20 s.
double energy_window_s(const sensors::MeterSet& counters);

// Runs at least once and for `seconds`. Lets pass what `run` throws. Counters that tick slowly, a
// GPU's, are read at their ticks, from another thread, while the work goes on, 0.3 s after it
// began.
SustainedEnergy measure_energy(const std::function<void()>& run, double seconds,
                               const measure::Telemetry& telemetry, Clock& clock);

// Percent of the time between two readings of a counter of time that changes every period_s
// seconds, which may show that much too much or too little at both ends. None, with a reason, where
// it is no share.
struct Share {
  std::optional<double> pct;
  std::string reason;
};
Share share_of_time(const Reading& before, const Reading& after, double period_s);

// Largest power over all sampling steps: readings of `meters` counters, each in order of time, in
// joules; the k-th readings of all meters belong together. A step in which one of them broke off
// says nothing.
std::optional<double> largest_power(const std::vector<std::vector<Reading>>& readings);

}  // namespace dfa::bench
