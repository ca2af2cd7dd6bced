#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "govern/points.h"
#include "power/lent_limit.h"
#include "power/policy.h"
#include "simulate/marks.h"
#include "simulate/run.h"

namespace dfa::govern {

struct Section {
  power::Policy policy;
  double seconds = 10;
};

struct RunOptions {
  std::vector<Section> sections;  // one after the other
  double max_error = 1e9;
  bool sm_budget = false;  // fewer multiprocessors before gaps, where kernels take a budget
  std::function<void(const simulate::Sample&, const power::Decision&)> on_sample{};
  std::function<bool()> interrupted{};
  std::optional<power::Limit> limit{};  // of the card, where its owner lends it
};

// A governed run in the simulator's terms, so that the same measures and traces serve both. Samples
// hold what sensors said: power of an instant, and the sensor's own mean of a second; NaN where
// there is no sensor.
struct Governed {
  simulate::Scenario scenario;
  simulate::Run run;
  double governor_share = 0;  // of the time, in the governor's steps and readings
  long long calls = 0;
};

// Runs the workload under the policies, in this thread; the governor has its own. Throws
// Unsupported where a policy cannot be followed with these points.
Governed run_governed(bench::Workload& workload, const std::vector<Candidate>& candidates,
                      const RunOptions& options, const GpuIdentity& gpu,
                      std::optional<double> idle_w, Clock& clock);

}  // namespace dfa::govern
