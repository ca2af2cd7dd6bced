#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/implementation.h"
#include "bench/result.h"
#include "bench/runner.h"
#include "bench/suites.h"
#include "contract/clock.h"
#include "measure/problem_buffers.h"
#include "measure/telemetry.h"

namespace dfa::bench {

// One implementation of a problem, as it goes through the stages of a run: its record so far, and
// its end where something goes wrong.
struct Case {
  CaseResult record;
  Launch launch = Launch::eager;
  bool peer = false;
  measure::PassPlans plans{};  // of ours only
  std::unique_ptr<Implementation> implementation{};
  std::vector<Sample> samples{};  // durations of one call

  bool alive() const { return record.status == CaseStatus::ok; }

  void end(CaseStatus status, std::string reason) {
    record.status = status;
    record.reason = std::move(reason);
  }

  // False, and the end of the case, when `body` throws.
  bool attempt(const std::function<void()>& body);

  // What the plans say, and the bytes they take.
  void describe_plans(const Problem& problem);

  // The stages after the timing.
  void measure_energy(const measure::Telemetry& telemetry, Clock& clock, double seconds);
  void no_energy(const measure::Telemetry& telemetry, const std::string& reason);
  void measure_memory(const Problem& problem);
  void check(const CheckOptions& options);

  // Statistics of the samples, and a reason for everything that was not measured.
  void finish(const measure::Telemetry& telemetry);

 private:
  void explain_nulls(const measure::Telemetry& telemetry);
};

}  // namespace dfa::bench
