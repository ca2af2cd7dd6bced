#pragma once

#include <string>

#include "simulate/run.h"

namespace dfa::govern {

// The run as a Chrome trace (chrome://tracing, ui.perfetto.dev): counters of power, temperature,
// clock and level, and one slice for each stretch of equal point and status.
std::string to_chrome_trace(const simulate::Run& run);

}  // namespace dfa::govern
