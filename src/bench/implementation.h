#pragma once

#include "measure/memory_peak.h"
#include "reference/check.h"

namespace dfa::bench {

// One way to run the problem of a group, as a suite times, weighs and checks it: an algorithm of
// ours with its launch mode, or a peer's. A run is as many calls as the group asks for.
class Implementation {
 public:
  virtual ~Implementation() = default;

  virtual void run(int times) = 0;  // back to back; returns when done
  virtual double time_s() = 0;      // of one run, on the device where that has a clock

  // Bytes that one call takes on top of the problem's tensors.
  virtual measure::MemoryGrowth growth() = 0;

  // Runs once into poisoned outputs and holds them against fp64.
  virtual CheckReport check(const CheckOptions& options) = 0;
};

}  // namespace dfa::bench
