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

  // All of them; and the first, or null. Of several counters of energy the first is a part only.
  std::vector<Meter*> all() const {
    std::vector<Meter*> list;
    for (const auto& meter : meters) list.push_back(meter.get());
    return list;
  }
  Meter* first() const { return empty() ? nullptr : meters.front().get(); }
};

}  // namespace dfa::sensors
