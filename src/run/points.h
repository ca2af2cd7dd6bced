#pragma once

#include <optional>
#include <string>
#include <vector>

#include "contract/operating_point.h"
#include "measure/problem_buffers.h"
#include "measure/telemetry.h"

namespace dfa::run {

// A point with the plans that it stands for.
struct Candidate {
  OperatingPoint point;
  measure::PassPlans plans;
  int batch = 1;      // calls queued together: about a millisecond
  double spread = 0;  // of the time, relative
};

struct PointOptions {
  std::string backend = "auto";
  int candidates = 3;       // of tiles, the default first
  bool less_exact = false;  // the problem in tf32 or e4m3 too, as spec/less_exact.h says
  double seconds = 2;       // of each measurement, after settling
  double settle_s = 0.6;    // the power sensor and the card's own limit take that long
  // Most that a plan may take beside the tensors; empty: nine tenths of what is free.
  std::optional<std::int64_t> memory_bytes{};
};

// The backend's power with nothing running; empty where it is not measured.
std::optional<double> idle_power(const measure::Telemetry& telemetry, Clock& clock, double seconds);

// What plans may take on a backend beside the tensors, by these options.
std::int64_t memory_for_plans(const std::string& backend, std::optional<std::int64_t> asked);

// The default plans of a problem and those of tiles near them; of a forward with its backward also
// the one that stores the probabilities between them, where there is memory for it. The less exact
// ones come second, where the backend has them.
struct CandidatePlans {
  std::vector<measure::PassPlans> plans{};
  std::vector<std::string> refused{};  // a line each: no memory, or no less exact type
};
CandidatePlans candidate_plans(const Problem& problem, const PointOptions& options);
std::string label_of(const measure::PassPlans& plans);  // the configuration, as text
int batch_for(double call_s);

// Bytes of a plan's workspace, of what it stores, and of inputs that are quantised for it.
std::int64_t memory_of(const Problem& problem, const measure::PassPlans& plans);

// At full speed and, where there is a power sensor, half paused. Empty where the result is wrong by
// the rule of the plan's own type. The point's error is from the problem's inputs, what quantising
// them costs included, which its time is not.
std::optional<Candidate> measure_candidate(measure::ProblemBuffers& buffers,
                                           const measure::PassPlans& plans,
                                           const PointOptions& options,
                                           const measure::Telemetry& telemetry,
                                           std::optional<double> idle_w, Clock& clock);

}  // namespace dfa::run
