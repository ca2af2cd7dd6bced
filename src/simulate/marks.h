#pragma once

#include <optional>
#include <string>
#include <vector>

#include "simulate/run.h"

namespace dfa::simulate {

// How well caps were held. A change of policy, load, neighbour or sensor starts a new section. A
// section counts as settled one second after its beginning; means of a second count from one second
// later, when they hold nothing older.
struct Measures {
  std::optional<double> violation_pct{};
  std::optional<double> overshoot_pct{};
  std::optional<double> settling_s{};  // of the slowest section
  std::optional<double> power_deviation_w{};
  std::optional<double> temp_over_c{};
  double switches_per_minute = 0;
  double infeasible_pct = 0;
  double mean_power_w = 0;
  double work_per_j = 0;
  std::optional<double> work_vs_pacing{};
};

// An interrupt leaves out what would be simulated for comparison.
Measures measure(const Scenario& scenario, const Run& run, const Interrupted& interrupted = {});

// Each mark that was missed, in words; empty: all reached.
std::vector<std::string> missed(const Scenario& scenario, const Run& run, const Measures& measures);

// One JSON object a line: head, samples, decisions that changed something, measures.
std::string to_trace(const Scenario& scenario, const Run& run, const Measures& measures,
                     const std::string& source = "simulated");

}  // namespace dfa::simulate
