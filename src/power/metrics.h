#pragma once

#include <optional>
#include <string>

#include "power/trace.h"

namespace dfa::power {

// How well caps were held. A change of policy, load, neighbour or sensor starts a new section. A
// section counts as settled one second after its beginning; means of a second count from one second
// later, when they hold nothing older.
struct Metrics {
  std::optional<double> violation_pct{};
  std::optional<double> overshoot_pct{};
  std::optional<double> settling_s{};  // of the slowest section
  std::optional<double> power_deviation_w{};
  std::optional<double> temp_over_c{};
  double switches_per_minute = 0;
  double infeasible_pct = 0;
  double mean_power_w = 0;
  double work_per_j = 0;
  std::optional<double> inexact_s{};       // where a bound was declared and the truth is known
  std::optional<double> work_vs_pacing{};  // where gaps as the only lever were simulated too
};

Metrics measure(const TraceHead& head, const Trace& trace);

// One JSON object a line: head, samples, decisions that changed something, metrics.
std::string to_trace(const TraceHead& head, const Trace& trace, const Metrics& metrics,
                     const std::string& source);

}  // namespace dfa::power
