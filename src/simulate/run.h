#pragma once

#include <functional>
#include <vector>

#include "power/trace.h"
#include "simulate/scenario.h"

namespace dfa::simulate {

using Interrupted = std::function<bool()>;  // asked now and then; empty: never

// The real controller on the simulated card. An interrupt ends it early, with fewer samples. Throws
// Unsupported where the policy cannot be followed.
power::Trace run(const Scenario& scenario, const Interrupted& interrupted = {});

// What traces say of a scenario.
power::TraceHead head_of(const Scenario& scenario);

// The scenario as far as it was simulated: what an interrupt cut off is not in it, and no bounds
// are, since they are of the whole.
Scenario until(Scenario scenario, double seconds);

// The same with gaps as the only lever and the fastest point only; what the card's own limit would
// hold is a cap.
Scenario pacing_only(Scenario scenario);

}  // namespace dfa::simulate
