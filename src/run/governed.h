#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "power/governor.h"
#include "power/guard.h"
#include "power/lent_levers.h"
#include "power/policy.h"
#include "power/trace.h"
#include "run/points.h"

namespace dfa::run {

struct Section {
  power::Policy policy;
  double seconds = 10;
};

// A problem to run, and the ways to run it.
struct Load {
  measure::ProblemBuffers& buffers;
  std::vector<Candidate> candidates;
};

struct RunOptions {
  std::vector<Section> sections;  // one after the other
  double load_s = 0;  // after so long comes the next load, round and round; 0: the first only
  std::optional<double> max_error{};  // declared by the caller: then outputs are watched
  bool sm_budget = false;  // fewer multiprocessors before gaps, where kernels take a budget
  std::function<void(const power::TraceSample&, const power::Decision&)> on_sample{};
  std::function<bool()> interrupted{};
  power::Lent lent{};  // levers of the card, where its owner lends them
};

// Rows of o that are recomputed at once.
inline constexpr int kGuardRows = 16;

// What a governed run showed.
struct Governed {
  power::TraceHead head;
  power::Trace trace;
  double governor_share = 0;  // of the time, in the governor's steps and readings
  double seconds = 0;
  long long calls = 0;
  power::Guard guard;
  std::string unwatched{};  // why outputs are not watched, where a bound was declared
};

// What a governor reads of these sensors; no mean of a second. They outlive it.
power::Telemetry meters_of(const measure::Telemetry& telemetry);

// Runs the loads under the policies, in this thread; governor and sensors have theirs. Throws
// Unsupported where a policy cannot be followed with the points of a load.
Governed run_governed(const std::vector<Load>& loads, const RunOptions& options,
                      const GpuIdentity& gpu, std::optional<double> idle_w, Clock& clock);

}  // namespace dfa::run
