#pragma once

#include <functional>
#include <vector>

#include "power/controller.h"
#include "simulate/scenario.h"

namespace dfa::simulate {

// The truth of 100 ms, whatever the sensors said.
struct Sample {
  double time_s = 0;    // its end
  double power_w = 0;   // mean
  double second_w = 0;  // mean of the last second
  double temp_c = 0;
  double clock_hz = 0;
  double work_per_s = 0;
  double cap_w = 0;  // of the policy; 0: none
  double cap_c = 0;
};

struct Run {
  power::Setup setup;  // what the controller knew
  std::vector<Sample> samples;
  std::vector<power::Decision> decisions;  // every one
  double work = 0;
  double energy_j = 0;
  double host_s = 0;  // that the simulation took
};

using Interrupted = std::function<bool()>;  // asked now and then; empty: never

// The real controller on the simulated card. An interrupt ends it early, with fewer samples. Throws
// Unsupported where the policy cannot be followed.
Run run(const Scenario& scenario, const Interrupted& interrupted = {});

// The scenario as far as it was simulated: what an interrupt cut off is not in it, and no bounds
// are, since they are of the whole.
Scenario until(Scenario scenario, double seconds);

// The same with gaps as the only lever and the fastest point only; what the card's own limit would
// hold is a cap.
Scenario pacing_only(Scenario scenario);

}  // namespace dfa::simulate
