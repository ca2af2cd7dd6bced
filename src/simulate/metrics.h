#pragma once

#include <string>
#include <vector>

#include "power/metrics.h"
#include "simulate/run.h"

namespace dfa::simulate {

// With the work of a run whose only lever is gaps, where the scenario has a bound of it. An
// interrupt leaves out what would be simulated for that.
power::Metrics measure(const Scenario& scenario, const power::Trace& trace,
                       const Interrupted& interrupted = {});

// Each metric that is out of its bound, in words; empty: all are within.
std::vector<std::string> missed(const Scenario& scenario, const power::Trace& trace,
                                const power::Metrics& metrics);

}  // namespace dfa::simulate
