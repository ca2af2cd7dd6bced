#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/result.h"
#include "bench/stopping.h"
#include "contract/clock.h"

namespace dfa::bench {

// One thing to time: run() returns when its work is done, and may throw a dfa::Error. time(), where
// given, does the same and says itself how many seconds it took.
struct Variant {
  std::string name;
  std::function<void()> run;
  std::function<double()> time{};
};

struct Sample {
  double start_s = 0;  // since the measurement began
  double duration_s = 0;
  std::optional<double> clock_hz{};
  std::optional<double> temp_c{};
};

// Read between samples, outside the timed span.
struct Conditions {
  std::optional<double> clock_hz;
  std::optional<double> temp_c;
};

struct MeasureOptions {
  StoppingRule stopping{};
  bool interleave = true;  // else one variant after the other
  int warm_up = 1;         // untimed runs of each variant first
  std::uint64_t seed = 1;
  std::function<Conditions()> conditions{};  // may be empty
  std::function<void()> on_sample{};         // may be empty; for progress
};

struct Measurement {
  CaseStatus status = CaseStatus::ok;
  std::string reason;  // when the status is not ok
  std::vector<Sample> samples;

  std::vector<double> durations() const;
};

// Times the variants, interleaved in random order, until each has had enough. A variant that throws
// keeps what it has, gets a status and is not run again; the others go on.
std::vector<Measurement> measure(const std::vector<Variant>& variants,
                                 const MeasureOptions& options, const Clock& clock);

// Runs `body`, turning OutOfMemory, Unsupported and other errors of the library into a status.
// Returns true when it ended well.
bool guarded(const std::function<void()>& body, CaseStatus& status, std::string& reason);

}  // namespace dfa::bench
