#pragma once

#include <memory>
#include <vector>

#include "contract/meter.h"

namespace dfa::sensors {

// The meters one source offers. Where there are none, `status` tells a user why and what to do.
struct MeterSet {
  std::vector<std::unique_ptr<Meter>> meters;
  Verdict status;

  bool empty() const { return meters.empty(); }
};

}  // namespace dfa::sensors
